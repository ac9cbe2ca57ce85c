package systemd

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/mount"
)

// unitDir is the directory for unit files of the administrator.
const unitDir = "/etc/systemd/system"

// units returns the requested unit files. The first one is the mount unit or the failover unit.
func (o *generateOptions) units() *generated {
	if o.failover.on {
		return o.failoverUnits()
	}

	mount := mount.UnitName(o.dir)
	auto := strings.TrimSuffix(mount, "mount") + "automount"
	g := &generated{Fstab: o.fstab(), Enable: mount}
	g.Files = append(g.Files, unitFile{filepath.Join(unitDir, mount), o.mountText(g.Fstab)})

	if o.automount {
		g.Files = append(g.Files, unitFile{filepath.Join(unitDir, auto), o.automountText()})
		g.Enable = auto
	}

	if o.consumer != "" {
		g.Files = append(g.Files, unitFile{filepath.Join(unitDir, o.consumer+".d", mount+".conf"), o.dropIn()})
	}

	return g
}

// mountText returns the contents of the mount unit. It does not use unit.Serialize of go-systemd,
// because that function cannot write comments.
func (o *generateOptions) mountText(fstab string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# In /etc/fstab it would be: %s
[Unit]
Description=Volume %s at %s
# The agent mounts the volume. It starts before this unit, and stops after it.
Wants=volagent.service
After=volagent.service
`, fstab, specifiers(o.parsed.Volume), specifiers(o.dir))

	if !o.automount {
		b.WriteString("# Units that wait for file systems wait for this mount, at most until TimeoutSec=.\nBefore=remote-fs.target\n")
	}

	fmt.Fprintf(&b, "\n[Mount]\nWhat=%s\nWhere=%s\nType=csi\nOptions=%s\nTimeoutSec=%d\n",
		specifiers(o.volume), specifiers(o.dir), specifiers(o.list()), int(o.patience().Seconds()))

	if !o.automount {
		b.WriteString(install)
	}

	return b.String()
}

// install is the section of a unit that makes systemd mount the volume at boot. If the mount fails,
// the boot continues.
const install = "\n[Install]\nWantedBy=remote-fs.target\n"

func (o *generateOptions) automountText() string {
	return fmt.Sprintf("[Unit]\nDescription=Volume %s at %s, when it is first used\n\n[Automount]\nWhere=%s\n",
		specifiers(o.parsed.Volume), specifiers(o.dir), specifiers(o.dir)) + install
}

func (o *generateOptions) dropIn() string {
	return fmt.Sprintf("# It starts after volume %s is mounted, and stops before the volume is unmounted.\n[Unit]\nRequiresMountsFor=%s\n",
		o.parsed.Volume, quoted(specifiers(o.dir)))
}

// list returns the mount options, separated by commas. The first two options tell systemd that the
// mount needs the network, and that the boot continues if the mount fails.
func (o *generateOptions) list() string {
	all := []string{"_netdev", "nofail"}
	for _, text := range o.options {
		for _, option := range fstab.SplitOptions(text) {
			if strings.Contains(option, ",") {
				option = `"` + option + `"`
			}
			if !slices.Contains(all[:2], option) {
				all = append(all, option)
			}
		}
	}

	return strings.Join(all, ",")
}

// fstab returns a line of fstab(5) that has the same effect as the mount unit.
func (o *generateOptions) fstab() string {
	options := o.list()
	if o.automount {
		options += ",x-systemd.automount"
	}
	if o.parsed.Timeout != command.ClaimTimeout {
		options += fmt.Sprintf(",x-systemd.mount-timeout=%ds", int(o.patience().Seconds()))
	}
	return fstabField(o.volume) + " " + fstabField(o.dir) + " csi " + fstabField(options) + " 0 0"
}

// fstabField escapes the characters that have a special meaning in fstab(5).
func fstabField(text string) string {
	text = strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`).Replace(text)
	if rest, ok := strings.CutPrefix(text, "#"); ok {
		return `\043` + rest
	}
	return text
}

// specifiers doubles percent signs, because a single percent sign starts a specifier in systemd
// (systemd.unit(5)).
func specifiers(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// quoted quotes a word for a setting whose value is a list of words.
func quoted(text string) string {
	if !strings.ContainsAny(text, ` "'\`) {
		return text
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
