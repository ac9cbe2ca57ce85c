package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/fstab"
)

// unitDir is where an administrator's units are.
const unitDir = "/etc/systemd/system"

// units are the files that are asked for, the mount unit first.
func (o *systemdOptions) units() *generated {
	mount := mountUnit(o.dir)
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

func (o *systemdOptions) mountText(fstab string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# In /etc/fstab it would be: %s
[Unit]
Description=Volume %s at %s
# The agent mounts it: it comes up before, and stays until this is unmounted.
Wants=volagent.service
After=volagent.service
`, fstab, specifiers(o.parsed.volume), specifiers(o.dir))
	if !o.automount {
		b.WriteString("# What waits for file systems waits for this, until TimeoutSec= at the most.\nBefore=remote-fs.target\n")
	}
	fmt.Fprintf(&b, "\n[Mount]\nWhat=%s\nWhere=%s\nType=csi\nOptions=%s\nTimeoutSec=%d\n",
		specifiers(o.volume), specifiers(o.dir), specifiers(o.list()), int(o.patience().Seconds()))
	if !o.automount {
		b.WriteString(install)
	}
	return b.String()
}

// install has a boot mount it, and go on if that fails.
const install = "\n[Install]\nWantedBy=remote-fs.target\n"

func (o *systemdOptions) automountText() string {
	return fmt.Sprintf("[Unit]\nDescription=Volume %s at %s, when it is first used\n\n[Automount]\nWhere=%s\n",
		specifiers(o.parsed.volume), specifiers(o.dir), specifiers(o.dir)) + install
}

func (o *systemdOptions) dropIn() string {
	return fmt.Sprintf("# It starts once volume %s is mounted, and stops before that is unmounted.\n[Unit]\nRequiresMountsFor=%s\n",
		o.parsed.volume, quoted(specifiers(o.dir)))
}

// list are the mount's options. The first two have systemd take it for one of the
// network, and a boot go on without it.
func (o *systemdOptions) list() string {
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

// fstab is the line of fstab(5) that does the same.
func (o *systemdOptions) fstab() string {
	options := o.list()
	if o.automount {
		options += ",x-systemd.automount"
	}
	if o.parsed.timeout != claimTimeout {
		options += fmt.Sprintf(",x-systemd.mount-timeout=%ds", int(o.patience().Seconds()))
	}
	return fstabField(o.volume) + " " + fstabField(o.dir) + " csi " + fstabField(options) + " 0 0"
}

// fstabField escapes what separates the fields of fstab(5).
func fstabField(text string) string {
	text = strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`).Replace(text)
	if rest, ok := strings.CutPrefix(text, "#"); ok {
		return `\043` + rest
	}
	return text
}

// specifiers has systemd take a text as it is: a percent sign begins a specifier
// (systemd.unit(5)).
func specifiers(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// quoted is a word of a setting that is a list of them.
func quoted(text string) string {
	if !strings.ContainsAny(text, ` "'\`) {
		return text
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}
