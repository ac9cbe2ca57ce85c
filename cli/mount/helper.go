package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// mount(8) and umount(8) start this program under these names.
const (
	mountCSI  = "mount.csi"
	umountCSI = "umount.csi"
)

// These are the exit codes of mount(8).
const (
	helperDone   = 0
	helperUsage  = 1  // a usage or permission error
	helperSystem = 2  // the agent does not answer
	helperFailed = 32 // the mount or unmount failed
)

// helperCode returns the exit code of mount(8) that corresponds to an error.
func helperCode(err error) int {
	switch command.CodeOf(err) {
	case "":
		return helperDone
	case api.CodeInvalid, api.CodePermission:
		return helperUsage
	case api.CodeUnreachable:
		return helperSystem
	default:
		return helperFailed
	}
}

// Helper represents a run of the program as mount.csi or umount.csi.
type Helper struct {
	env  command.Env
	host Host
	name string

	// These are flags of mount(8) and umount(8). For mount(8), -f means not to mount anything
	// (fake), -v to print the result, and -n not to update libmount's table. For umount(8), -f
	// means force, and -l means lazy.
	fake, verbose, noTable, force, lazy bool
	kind                                string
	options                             []string
}

// NewHelper returns the Helper for the name of the program. It returns nil if this is not the name
// of a helper.
func NewHelper(env command.Env, host Host) *Helper {
	switch name := filepath.Base(env.Program); name {
	case mountCSI, umountCSI:
		return &Helper{env: env, host: host, name: name}
	}
	return nil
}

// Run mounts or unmounts the directory and returns the exit code. It prints an error as a single
// line, so that the journal stores the error as a single entry.
func (h *Helper) Run(ctx context.Context) int {
	args, err := h.read()
	switch {
	case errors.Is(err, pflag.ErrHelp):
		h.say(h.usage())
		return helperDone
	case err != nil:
	case h.fake:
		return helperDone
	case h.name == mountCSI:
		err = h.mount(ctx, args[0], args[1])
	default:
		err = h.umount(ctx, args[0])
	}

	if err != nil {
		e := command.Wire(err)
		h.complain(output.Words(output.Joined("; ", e.Message, e.Hint)))
	}

	return helperCode(err)
}

// complain writes a line to stderr, and say writes a line to stdout. Both ignore write errors,
// because there is no other place to report them.
func (h *Helper) complain(text string) {
	_, _ = fmt.Fprintf(h.env.Stderr, "%s: %s\n", h.name, output.OneLine(text))
}

func (h *Helper) say(text string) {
	_, _ = fmt.Fprintf(h.env.Stdout, "%s: %s\n", h.name, output.OneLine(text))
}

func (h *Helper) usage() string {
	if h.name == mountCSI {
		return "for mount(8): mount.csi VOLUME DIR [-fnsv] -o OPTIONS; the options: volctl mount --help"
	}
	return "for umount(8): umount.csi DIR [-flnrv]"
}

// read parses the arguments that mount(8) and umount(8) pass to their helpers. It ignores -s
// (tolerate unknown options), because systemd always passes it. It also ignores -r (remount
// read-only if the unmount fails), because a bind mount has no such fallback.
func (h *Helper) read() ([]string, error) {
	f := pflag.NewFlagSet(h.name, pflag.ContinueOnError)
	f.SetOutput(h.env.Stderr)
	f.Usage = func() {}
	f.BoolVarP(&h.verbose, "verbose", "v", false, "")
	f.BoolVarP(&h.noTable, "no-mtab", "n", false, "")
	f.StringVarP(&h.kind, "types", "t", "", "")
	wanted := []string{"DIR"}

	if h.name == mountCSI {
		wanted = []string{"VOLUME", "DIR"}
		f.BoolVarP(&h.fake, "fake", "f", false, "")
		f.BoolP("sloppy", "s", false, "")
		f.StringArrayVarP(&h.options, "options", "o", nil, "")
	} else {
		f.BoolVarP(&h.force, "force", "f", false, "")
		f.BoolVarP(&h.lazy, "lazy", "l", false, "")
		f.BoolP("read-only", "r", false, "")
	}

	err := f.Parse(h.env.Args)
	switch args := f.Args(); {
	case errors.Is(err, pflag.ErrHelp):
		return nil, err
	case err != nil:
		return nil, command.Usage(h.usage(), "%v", err)
	case len(args) != len(wanted):
		return nil, command.Usage(h.usage(), "it needs %s", strings.Join(wanted, " and "))
	case h.name == mountCSI && h.kind != "" && h.kind != "csi":
		// mount(8) must pass the type csi. umount(8) passes the type of the mounted file system,
		// such as fuse.sshfs.
		return nil, command.Usage("the only type is csi", "there is no type %q", h.kind)
	default:
		return args, nil
	}
}

func (h *Helper) client() *apiclient.Client {
	return apiclient.New(cmp.Or(h.env.Getenv("VOLCTL_SOCKET"), apiclient.DefaultSocket))
}

// silent returns a Printer that does not show progress.
func (h *Helper) silent() *output.Printer {
	return &output.Printer{Options: output.Options{
		Stdout: h.env.Stdout, Stderr: h.env.Stderr, Format: output.FormatTable, Quiet: true, Now: h.env.Now, Pause: command.Sleep,
		Columns: func() int { return 0 }, Device: func(string) string { return "" },
	}}
}

func (h *Helper) mount(ctx context.Context, volume, dir string) error {
	m, err := newMounting(h.host, volume, dir, h.options)
	if err != nil {
		return err
	}

	m.forget = h.noTable
	var hint string
	unit := h.isUnit(m.dir)

	if !m.network {
		hint = bootHint(h.env, m.dir, unit)
	}

	// Refuse the mount even if the agent answers. An entry with nofail but without _netdev is not
	// ordered after the agent, so the mount would fail at some other boots.
	if hint != "" && unit && h.host.Booting(ctx) {
		return command.Failed(&api.Error{Code: api.CodeUnreachable, Message: "the host is booting", Hint: hint}, "mount volume %q at %s", volume, m.dir)
	}

	client := h.client()
	defer client.Close()

	done, err := m.mount(ctx, client, h.silent())
	switch {
	case err == nil && h.verbose:
		h.say(m.said(done))
	case command.CodeOf(err) == api.CodeUnreachable:
		return before(err, hint)
	case command.CodeOf(err) == api.CodePermission && os.Geteuid() != 0:
		return before(err, `a line with "user" in /etc/fstab is mounted as the user who asks for it`)
	}

	return err
}

// before returns err with an additional hint in front of its own hint.
func before(err error, hint string) error {
	e := command.Wire(err)
	e.Hint = output.Joined("; ", hint, e.Hint)
	return e
}

// isUnit reports whether systemd runs the helper for a mount unit, and not a person with mount(8).
func (h *Helper) isUnit(dir string) bool {
	cgroup, _ := h.env.Cgroup() // without /proc, isUnit returns false
	return strings.Contains(string(cgroup), "/"+UnitName(dir))
}

// bootHint returns advice on how to correct an entry of fstab(5) or a mount unit that systemd would
// mount before the agent can run. It returns "" if neither of them mounts the directory, because a
// person must then have called mount(8).
func bootHint(env command.Env, dir string, unit bool) string {
	const why = ": without _netdev it is mounted before the agent can run, and stops the boot"
	// An error is ignored, because the file may not exist.
	text, _ := os.ReadFile(cmp.Or(env.Getenv("LIBMOUNT_FSTAB"), "/etc/fstab"))
	switch {
	case inFstab(string(text), dir):
		return "add _netdev,nofail to its line in /etc/fstab" + why
	case unit:
		return "add _netdev to the Options= of " + UnitName(dir) + why
	}

	return ""
}

// inFstab reports whether fstab has an entry for the directory with type csi and without _netdev.
func inFstab(text, dir string) bool {
	for line := range strings.Lines(text) {
		f := fstab.Fields(line)
		if len(f) >= 4 && !strings.HasPrefix(f[0], "#") && filepath.Clean(fstab.Unescape(f[1])) == dir &&
			f[2] == "csi" && !strings.Contains(","+f[3]+",", ",_netdev,") {
			return true
		}
	}
	return false
}

// umount unmounts the directory. If the unmount succeeds but the detach of the claim fails, umount
// only prints a warning, because umount(8) requires only the unmount.
func (h *Helper) umount(ctx context.Context, dir string) error {
	o := umountOptions{lazy: h.lazy, force: h.force, timeout: command.ClaimTimeout, host: h.host, plain: true}
	var err error
	if o.dir, err = filepath.Abs(dir); err != nil || dir == "" {
		return command.Failed(command.Usage(h.usage(), "cannot resolve that directory"), "unmount %q", dir)
	}

	client := h.client()
	defer client.Close()

	done, err := o.umount(ctx, client)
	switch {
	case done == nil:
		return err
	case err != nil:
		e := command.Wire(err)
		h.complain("warning: " + output.Joined("; ", e.Message, cmp.Or(e.Hint, suggest.Command("volctl volume status %s", done.Volume))))
	case done.Warning != "":
		h.complain("warning: " + done.Warning)
	case h.verbose:
		h.say(done.said())
	}

	return nil
}
