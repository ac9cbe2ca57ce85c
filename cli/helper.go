package cli

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
	"github.com/volagent/volagent/volmgr/suggest"
)

// The names by which mount(8) and umount(8) call this program.
const (
	mountCSI  = "mount.csi"
	umountCSI = "umount.csi"
)

// The exit codes of mount(8).
const (
	helperUsage  = 1  // incorrect invocation or permissions
	helperSystem = 2  // no agent
	helperFailed = 32 // not mounted, or not unmounted
)

// helperCode turns an error into an exit code of mount(8).
func helperCode(err error) int {
	switch codeOf(err) {
	case "":
		return exitDone
	case api.CodeInvalid, api.CodePermission:
		return helperUsage
	case api.CodeUnreachable:
		return helperSystem
	default:
		return helperFailed
	}
}

// helper is a run of mount.csi or umount.csi.
type helper struct {
	env  Env
	name string
	// What mount(8) says with flags: -f to do nothing, -v to say what is done, -n to
	// leave libmount's table alone, and of umount -f and -l.
	fake, verbose, noTable, force, lazy bool
	kind                                string
	options                             []string
}

// newHelper is nil unless this is called by a helper's name.
func newHelper(env Env) *helper {
	switch name := filepath.Base(env.Program); name {
	case mountCSI, umountCSI:
		return &helper{env: env, name: name}
	}
	return nil
}

// run does what it is called for and says what went wrong in one line, which is what
// the journal shows of it.
func (h *helper) run(ctx context.Context) int {
	args, err := h.read()
	switch {
	case errors.Is(err, pflag.ErrHelp):
		h.say(h.usage())
		return exitDone
	case err != nil:
	case h.fake:
		return exitDone
	case h.name == mountCSI:
		err = h.mount(ctx, args[0], args[1])
	default:
		err = h.umount(ctx, args[0])
	}
	if err != nil {
		e := wire(err)
		h.complain(joined("; ", e.Message, e.Hint))
	}
	return helperCode(err)
}

// complain writes one line to stderr, and say one to stdout. What cannot be written
// can be told nowhere.
func (h *helper) complain(text string) {
	_, _ = fmt.Fprintf(h.env.Stderr, "%s: %s\n", h.name, oneLine(text))
}

func (h *helper) say(text string) {
	_, _ = fmt.Fprintf(h.env.Stdout, "%s: %s\n", h.name, oneLine(text))
}

func (h *helper) usage() string {
	if h.name == mountCSI {
		return "for mount(8): mount.csi VOLUME DIR [-fnsv] -o OPTIONS; the options: volctl mount --help"
	}
	return "for umount(8): umount.csi DIR [-flnrv]"
}

// read reads the arguments that mount(8) and umount(8) give their helpers. -s, to
// bear with unknown options, is accepted and not followed: systemd always gives it.
// So is -r: a bind has nothing to fall back on.
func (h *helper) read() ([]string, error) {
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
		return nil, usage(h.usage(), "%v", err)
	case len(args) != len(wanted):
		return nil, usage(h.usage(), "it needs %s", strings.Join(wanted, " and "))
	case h.name == mountCSI && h.kind != "" && h.kind != "csi": // umount(8) says what the plugin mounted: fuse.sshfs
		return nil, usage("the type is csi alone", "there is no type %q", h.kind)
	default:
		return args, nil
	}
}

func (h *helper) client() *apiclient.Client {
	return apiclient.New(cmp.Or(h.env.Getenv("VOLCTL_SOCKET"), apiclient.DefaultSocket))
}

// silent is output that shows no progress.
func (h *helper) silent() *output {
	return &output{w: h.env.Stdout, errw: h.env.Stderr, format: formatTable, quiet: true, now: h.env.Now, pause: sleep}
}

func (h *helper) mount(ctx context.Context, volume, dir string) error {
	m, err := newMounting(h.env, volume, dir, h.options)
	if err != nil {
		return err
	}
	m.forget = h.noTable
	var hint string
	unit := h.isUnit(m.dir)
	if !m.network {
		hint = bootHint(h.env, m.dir, unit)
	}
	// Refused even if an agent answers: with nofail it would come before the agent at
	// one boot, and after it at another.
	if hint != "" && unit && h.env.Host.Booting(ctx) {
		return failed(&api.Error{Code: api.CodeUnreachable, Message: "the host is booting", Hint: hint}, "mount volume %q at %s", volume, m.dir)
	}
	client := h.client()
	defer client.Close()
	done, err := m.mount(ctx, client, h.silent())
	switch {
	case err == nil && h.verbose:
		h.say(m.said(done))
	case codeOf(err) == api.CodeUnreachable:
		return before(err, hint)
	case codeOf(err) == api.CodePermission && os.Geteuid() != 0:
		return before(err, `a line with "user" in /etc/fstab is mounted as whoever asks for it`)
	}
	return err
}

// before puts a hint before the one that an error has.
func before(err error, hint string) error {
	e := wire(err)
	e.Hint = joined("; ", hint, e.Hint)
	return e
}

// isUnit reports whether systemd mounts a directory, and no person.
func (h *helper) isUnit(dir string) bool {
	cgroup, _ := h.env.Cgroup() // without proc there is no unit either
	return strings.Contains(string(cgroup), "/"+mountUnit(dir))
}

// bootHint says how a line of fstab(5), or a unit, is to be repaired that is mounted
// before the agent can run. It is empty where a person mounts by hand what is in
// neither.
func bootHint(env Env, dir string, unit bool) string {
	const why = ": without _netdev it is mounted before the agent can run, and stops the boot"
	text, _ := os.ReadFile(cmp.Or(env.Getenv("LIBMOUNT_FSTAB"), "/etc/fstab")) // there need not be one
	switch {
	case inFstab(string(text), dir):
		return "add _netdev,nofail to its line in /etc/fstab" + why
	case unit:
		return "add _netdev to the Options= of " + mountUnit(dir) + why
	}
	return ""
}

// inFstab reports whether a directory has a line of type csi without _netdev.
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

// umount unmounts, and then only warns: the directory is what was to be unmounted.
func (h *helper) umount(ctx context.Context, dir string) error {
	o := umountOptions{lazy: h.lazy, force: h.force, timeout: claimTimeout, host: h.env.Host, plain: true}
	var err error
	if o.dir, err = filepath.Abs(dir); err != nil || dir == "" {
		return failed(usage(h.usage(), "it cannot be told which directory that is"), "unmount %q", dir)
	}
	client := h.client()
	defer client.Close()
	done, err := o.umount(ctx, client)
	switch {
	case done == nil:
		return err
	case err != nil:
		e := wire(err)
		h.complain("warning: " + joined("; ", e.Message, cmp.Or(e.Hint, suggest.Command("volctl volume status %s", done.Volume))))
	case done.Warning != "":
		h.complain("warning: " + done.Warning)
	case h.verbose:
		h.say(done.said())
	}
	return nil
}
