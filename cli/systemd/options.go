package systemd

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/mount"
	"github.com/volagent/volagent/volmgr/suggest"
)

// generateOptions holds the arguments and flags for the generated units.
type generateOptions struct {
	volume, dir    string
	consumer       string
	options        []string
	automount      bool
	install, force bool
	failover       failoverOptions
	host           mount.Host

	// parsed holds the parsed mount options.
	parsed *mount.Options
}

// check returns an error if any value cannot be written into a unit file.
func (o *generateOptions) check() (err error) {
	if o.parsed, err = mount.ReadOptions(o.options); err != nil {
		return err
	}

	if o.parsed.Volume = o.volume; o.parsed.PerAlloc != nil {
		o.parsed.Volume = fmt.Sprintf("%s[%d]", o.volume, *o.parsed.PerAlloc)
	}

	if err := command.CheckVolumeID(o.parsed.Volume); err != nil {
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

	if err := o.checkFailover(); err != nil {
		return err
	}

	if o.parsed.Alloc == "" && command.CheckAlloc(mount.UnitName(o.dir)) != nil {
		return command.Usage("-o alloc=NAME", "the path of %s is too long for the name of an alloc", o.dir)
	}

	for what, text := range map[string]string{"volume id": o.volume, "path": o.dir, "option": strings.Join(o.options, ",")} {
		if bad := notInUnit(text); bad != "" {
			return command.Usage("volctl mount", "the %s %q cannot be in a unit: it %s", what, text, bad)
		}
	}

	return nil
}

// unitPathMax is the maximum length of a unit name, in bytes (systemd.unit(5)).
const unitPathMax = 255

// checkDir returns an error for a directory at which systemd cannot mount a volume.
func (o *generateOptions) checkDir() error {
	if !filepath.IsAbs(o.dir) {
		return command.Usage("name it by its absolute path", "%q is not an absolute path", o.dir)
	}

	o.dir = filepath.Clean(o.dir)
	for _, own := range []string{"/proc", "/sys", "/dev", "/run"} {
		if o.dir == "/" || o.dir == own || own != "/run" && strings.HasPrefix(o.dir, own+"/") {
			return command.Usage("name another directory", "systemd mounts nothing else at %s", o.dir)
		}
	}

	if leads, err := filepath.EvalSymlinks(o.dir); err == nil && leads != o.dir {
		return command.Usage(suggest.Command("volctl systemd generate %s %s", o.volume, leads),
			"there is a symbolic link on the way to %s, which systemd does not follow to a mount point", o.dir)
	}

	if name := mount.UnitName(o.dir); len(name) > unitPathMax-len("auto") {
		return command.Usage("name a shorter path", "the name of the unit would be %d bytes long, and systemd allows %d", len(name), unitPathMax)
	}

	return nil
}

// checkUnit returns an error for an invalid unit name.
func checkUnit(name string) error {
	kind := filepath.Ext(name)
	stem := strings.TrimSuffix(name, kind)
	switch {
	case !slices.Contains(unitTypes, kind):
		return command.Usage("--for "+suggest.Quote(name+".service"), "%q is not the name of a unit: it has no type, as in web.service", name)
	case stem == "" || len(name) > unitPathMax || strings.HasPrefix(stem, "@") ||
		strings.ContainsFunc(stem, func(r rune) bool {
			return r > unicode.MaxASCII || !mount.UnitByte(byte(r)) && !strings.ContainsRune(`-@\`, r)
		}):
		return command.Usage("systemctl list-units", "%q is not the name of a unit", name)
	default:
		return nil
	}
}

// notInUnit returns the reason why a text cannot be a value in a unit file, or "" if it can. Spaces
// at both ends of a value are removed by systemd, and a backslash at the end continues the line.
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

// unitTypes lists the types of units that can depend on a mount.
var unitTypes = []string{".service", ".socket", ".target", ".timer", ".path", ".mount", ".automount", ".swap", ".slice", ".scope"}

// generated is the JSON output of the command.
type generated struct {
	Files  []unitFile `json:"files"`
	Fstab  string     `json:"fstab"`
	Enable string     `json:"enable"` // the name of the unit to enable
}

// unitFile is a unit file or a drop-in.
type unitFile struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// patience returns the timeout of the mount unit. It is longer than the timeout of mount.csi, so
// that mount.csi can still report its own timeout.
func (o *generateOptions) patience() time.Duration {
	return (o.parsed.Timeout + 2*mount.Grace).Round(time.Second)
}
