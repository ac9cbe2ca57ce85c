package cli

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/volmgr/suggest"
)

func newSystemd(a *app, host Host) *cobra.Command {
	return group("systemd", "Generate systemd units for volumes", "", newSystemdGenerate(a, host))
}

// systemdOptions describe the units to write.
type systemdOptions struct {
	volume, dir    string
	consumer       string
	options        []string
	automount      bool
	install, force bool
	host           Host

	// parsed are the parsed mount options.
	parsed *mountOptions
}

func newSystemdGenerate(a *app, host Host) *cobra.Command {
	o := systemdOptions{host: host}
	cmd := &cobra.Command{
		Use: "generate ID DIR", Short: "Generate the systemd units that mount a volume",
		Long: `Generate the mount unit with which systemd mounts a volume at a directory. The mount is ordered
after the agent and before remote-fs.target, and a boot continues without it. With --for, a
drop-in makes another unit wait for the mount. systemd stops that unit before it unmounts the
volume. With --automount, systemd mounts the volume at the first access to the directory. The
command prints the units, each with the path where it belongs.

With --install, the command writes the units to these paths, reloads systemd and enables the
mount. If an existing file differs, the command is refused (4) and writes nothing, unless you give
--force. The command starts nothing.`,
		Example: "  volctl systemd generate data /srv/data\n  volctl systemd generate data /srv/data --for postgresql.service --install\n" +
			"  volctl systemd generate data /srv/data --automount -o ro,nosuid",
		Args: exactly("ID", "DIR"), ValidArgsFunction: completeMount(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.volume, o.dir = args[0], args[1]
			return a.read(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return failed(runSystemdGenerate(ctx, o, client, out), "generate units for volume %q at %s", o.volume, o.dir)
			})
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.consumer, "for", "", "`UNIT` that needs the mount, as in web.service")
	f.StringArrayVarP(&o.options, "options", "o", nil, "mount `OPTIONS`, as for volctl mount; may be repeated")
	f.BoolVar(&o.automount, "automount", false, "mount the volume at first use")
	f.BoolVar(&o.install, "install", false, "write the units to /etc/systemd/system and enable the mount")
	f.BoolVar(&o.force, "force", false, "replace existing files that differ")

	a.longOutputFlag(f)
	return cmd
}

// generated is the output of the command for programs.
type generated struct {
	Files  []unitFile `json:"files"`
	Fstab  string     `json:"fstab"`
	Enable string     `json:"enable"` // the unit to enable
}

// unitFile is one unit file or drop-in.
type unitFile struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

func runSystemdGenerate(ctx context.Context, o systemdOptions, client *apiclient.Client, out *output) error {
	if err := o.check(); err != nil {
		return err
	}
	if _, err := client.Volume(ctx, o.parsed.volume); err != nil {
		return err
	}

	g := o.units()
	if !o.install {
		return out.print(g, paths(g.Files), func(w *bytes.Buffer) error {
			for i, f := range g.Files {
				if i > 0 {
					w.WriteString("\n")
				}
				w.WriteString("# " + f.Path + "\n" + f.Text)
			}
			return nil
		})
	}

	written, err := o.installs(ctx, g)
	if err != nil {
		return err
	}

	return out.print(g, paths(g.Files), func(w *bytes.Buffer) error {
		for _, f := range g.Files {
			did := "unchanged "
			if slices.Contains(written, f.Path) {
				did = "wrote "
			}
			w.WriteString(did + printable(f.Path) + "\n")
		}

		fmt.Fprintf(w, "enabled %s; to mount it now: %s\n", g.Enable, suggest.Command("systemctl start %s", g.Enable))
		return nil
	})
}

func paths(files []unitFile) (all []string) {
	for _, f := range files {
		all = append(all, f.Path)
	}
	return all
}

// check refuses input that cannot go into a unit.
func (o *systemdOptions) check() (err error) {
	if o.parsed, err = readMountOptions(o.options); err != nil {
		return err
	}

	if o.parsed.volume = o.volume; o.parsed.perAlloc != nil {
		o.parsed.volume = fmt.Sprintf("%s[%d]", o.volume, *o.parsed.perAlloc)
	}

	if err := checkVolumeID(o.parsed.volume); err != nil {
		return err
	}
	if err := o.checkDir(); err != nil {
		return err
	}

	if o.consumer != "" {
		if err := checkUnit(o.consumer); err != nil {
			return err
		}
	}

	if o.parsed.alloc == "" && checkAlloc(mountUnit(o.dir)) != nil {
		return usage("-o alloc=NAME", "the path of %s is too long for the name of an alloc", o.dir)
	}

	for what, text := range map[string]string{"volume id": o.volume, "path": o.dir, "option": strings.Join(o.options, ",")} {
		if bad := notInUnit(text); bad != "" {
			return usage("volctl mount", "the %s %q cannot stand in a unit: it %s", what, text, bad)
		}
	}

	return nil
}

// unitPathMax is the maximum length of a unit's name, in bytes (systemd.unit(5)).
const unitPathMax = 255

// checkDir refuses directories at which systemd would not mount a volume.
func (o *systemdOptions) checkDir() error {
	if !filepath.IsAbs(o.dir) {
		return usage("name it by its absolute path", "%q is not an absolute path", o.dir)
	}

	o.dir = filepath.Clean(o.dir)
	for _, own := range []string{"/proc", "/sys", "/dev", "/run"} {
		if o.dir == "/" || o.dir == own || own != "/run" && strings.HasPrefix(o.dir, own+"/") {
			return usage("name another directory", "systemd mounts nothing else at %s", o.dir)
		}
	}

	if leads, err := filepath.EvalSymlinks(o.dir); err == nil && leads != o.dir {
		return usage(suggest.Command("volctl systemd generate %s %s", o.volume, leads),
			"there is a symbolic link on the way to %s, which systemd does not follow to a mount point", o.dir)
	}

	if name := mountUnit(o.dir); len(name) > unitPathMax-len("auto") {
		return usage("name a shorter path", "the name of the unit would be %d bytes long, and systemd takes %d", len(name), unitPathMax)
	}

	return nil
}

// notInUnit says why a text cannot be the value of a setting, or returns "". A setting is one line.
// systemd strips spaces at its ends, and a backslash at its end continues it.
func notInUnit(text string) string {
	switch {
	case strings.ContainsFunc(text, unicode.IsControl):
		return "has a control character"
	case strings.TrimSpace(text) != text:
		return "begins or ends with a space"
	case strings.HasSuffix(text, `\`):
		return "ends with a backslash"
	default:
		return ""
	}
}

// unitTypes are the types of units that can depend on a mount.
var unitTypes = []string{".service", ".socket", ".target", ".timer", ".path", ".mount", ".automount", ".swap", ".slice", ".scope"}

// checkUnit refuses an invalid unit name.
func checkUnit(name string) error {
	kind := filepath.Ext(name)
	stem := strings.TrimSuffix(name, kind)
	switch {
	case !slices.Contains(unitTypes, kind):
		return usage("--for "+suggest.Quote(name+".service"), "%q is not the name of a unit: it has no type, as in web.service", name)
	case stem == "" || len(name) > unitPathMax || strings.HasPrefix(stem, "@") ||
		strings.ContainsFunc(stem, func(r rune) bool {
			return r > unicode.MaxASCII || !unitByte(byte(r)) && !strings.ContainsRune(`-@\`, r)
		}):
		return usage("systemctl list-units", "%q is not the name of a unit", name)
	default:
		return nil
	}
}

// patience returns the time that systemd gives the mount. It is longer than the helper's own
// timeout.
func (o *systemdOptions) patience() time.Duration {
	return (o.parsed.timeout + 2*mountGrace).Round(time.Second)
}
