package fstab

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/suggest"
)

// The kinds of faults.
const (
	Netdev    = "fstab-netdev"    // without _netdev, the entry can stop the boot
	Nofail    = "fstab-nofail"    // without nofail, a failed mount makes remote-fs.target fail
	BadOption = "fstab-option"    // an option is unknown, or its value is invalid
	BadVolume = "fstab-volume"    // the volume does not exist, or its id is invalid
	BadDir    = "fstab-dir"       // the volume cannot be mounted at its directory
	DirHolds  = "fstab-dir-holds" // nothing is mounted at the directory, but it is not empty
	Twice     = "fstab-duplicate" // two entries have the same directory
	Unread    = "fstab-unread"    // the agent cannot read a table or a unit
	NoPlugin  = "fstab-plugin"    // the volume's plugin does not exist
	UnitOrder = "unit-order"      // the unit is not ordered after the agent
)

// Kinds lists all kinds of faults.
var Kinds = []string{Netdev, Nofail, BadOption, BadVolume, BadDir, DirHolds, Twice, Unread, NoPlugin, UnitOrder}

// The severities of faults.
const (
	Problem = "problem"
	Warning = "warning"
)

// agentUnit is the agent's unit. The agent must run before systemd can mount a volume.
const agentUnit = "volagent.service"

// Fault is one mistake in an entry. An entry is a line of fstab or a mount unit.
type Fault struct {
	Kind     string
	Severity string
	Subject  string // the directory or, if there is none, the file and line of the entry
	What     string // the mistake, in one sentence
	Then     string // the consequence of the mistake, in one sentence
	Do       string // the command that fixes the mistake
}

// Spot describes the current state of a directory.
type Spot struct {
	Mounted bool   // the path is a mount point, so the directory below the mount is unknown
	Kind    string // "directory" or "file" or "other"; empty if nothing exists at the path
	Holds   string // the names of a few files in the directory; empty if there are none
	Fault   string // the reason why the directory cannot be examined
}

// Check checks entries against the rules of mount(8), systemd and the agent. It calls look for the
// state of each directory. The function look must not block on storage that hangs.
func Check(entries []Entry, look func(dir string) Spot) []Fault {
	var all []Fault
	at := map[string]Entry{}
	for _, e := range entries {
		c := checker{e: e}
		c.boot()
		c.options()

		if c.names() {
			if first, twice := at[e.Dir]; twice {
				c.add(Twice, Problem, fmt.Sprintf("%s and %s both mount at %s", first.Place(), e.Place(), e.Dir),
					"only one of the volumes can be mounted there, and the choice is random", c.edit())
			} else {
				at[e.Dir] = e
				c.dir(look(e.Dir))
			}
		}

		all = append(all, c.found...)
	}

	return all
}

// checker checks one entry and collects its faults.
type checker struct {
	e     Entry
	found []Fault
}

func (c *checker) add(kind, severity, what, then, do string) {
	c.found = append(c.found, Fault{Kind: kind, Severity: severity, Subject: c.subject(), What: what, Then: then, Do: do})
}

func (c *checker) subject() string {
	if path.IsAbs(c.e.Dir) {
		return c.e.Dir
	}
	return c.e.Place()
}

func (c *checker) edit() string { return Edit(c.e) }

// Edit returns the command that opens an entry in an editor.
func Edit(e Entry) string {
	if e.Unit != "" {
		return suggest.Command("systemctl edit --full %s", e.Unit)
	}
	return suggest.Command("${EDITOR:-vi} +%d %s", e.Line, e.File) + " && systemctl daemon-reload"
}

// boot checks that systemd mounts the volume only after the agent has started, and unmounts it
// before the agent stops.
func (c *checker) boot() {
	automount, noauto := c.e.Has("x-systemd.automount"), c.e.Has("noauto")
	if !c.e.Has("_netdev") {
		severity, then := Problem, "systemd mounts it as a local file system before it starts the agent, so the boot stops in emergency mode"
		if noauto && !automount || c.e.Unit != "" {
			severity, then = Warning, "at shutdown, systemd unmounts it as a local file system after it has stopped the agent, so the agent cannot unmount the volume cleanly"
		}
		c.add(Netdev, severity, c.e.Place()+" has no option _netdev", then, c.edit())
	}

	if c.e.Unit == "" && !c.e.Has("nofail") && !noauto {
		c.add(Nofail, Warning, c.e.Place()+" has no option nofail",
			"if the volume cannot be mounted, remote-fs.target fails, and the boot waits for the volume", c.edit())
	}

	if c.e.Unit != "" && !slices.Contains(c.e.After, agentUnit) {
		c.add(UnitOrder, Warning, fmt.Sprintf("unit %s is not ordered after %s", c.e.Unit, agentUnit),
			"systemd may start the unit while no agent answers, and at shutdown it may stop the agent first", suggest.Command("volctl systemd generate %s %s --install", c.e.Volume, c.e.Dir))
	}
}

func (c *checker) options() {
	for _, o := range c.e.Options {
		if err := CheckOption(o); err != nil {
			c.add(BadOption, Problem, fmt.Sprintf("%s: %v", c.e.Place(), err), "the volume is not mounted, because the agent refuses invalid options", c.edit())
		}
	}
}

// names checks the volume's id and the directory's path. It reports whether the path is valid, so
// that Check can examine the directory.
func (c *checker) names() bool {
	if id := VolumeOf(c.e); id == "" || id == "." || id == ".." || len(id) > 128 || strings.Contains(id, "/") {
		c.add(BadVolume, Problem, fmt.Sprintf("%s: %q is not a valid volume id", c.e.Place(), c.e.Volume), "the volume is not mounted", c.edit())
	}
	if !path.IsAbs(c.e.Dir) || path.Clean(c.e.Dir) == "/" {
		c.add(BadDir, Problem, fmt.Sprintf("%s: nothing can be mounted at %q", c.e.Place(), c.e.Dir), "the volume is not mounted", c.edit())
		return false
	}
	return true
}

// VolumeOf returns the id of the volume that an entry mounts. If the entry has the option
// per_alloc, the id ends with the index from this option.
func VolumeOf(e Entry) string {
	if n, ok := e.Value("per_alloc"); ok {
		return e.Volume + "[" + n + "]"
	}
	return e.Volume
}

// dir checks whether the volume can be mounted at the directory in its current state.
func (c *checker) dir(s Spot) {
	mode, _ := c.e.Value("attachment_mode")
	wants, mk := "directory", suggest.Command("mkdir -p %s", c.e.Dir)

	if mode == "block-device" {
		wants, mk = "file", suggest.Command("touch %s", c.e.Dir)
	}

	switch {
	case s.Fault != "":
		c.add(BadDir, Warning, fmt.Sprintf("%s cannot be examined: %s", c.e.Dir, s.Fault), "it is unknown whether the volume can be mounted there", suggest.Command("ls -ld %s", c.e.Dir))
	case s.Mounted:
	case s.Kind == "":
		c.add(BadDir, Problem, fmt.Sprintf("%s does not exist", c.e.Dir), "mount(8) does not mount the volume; systemd makes the directory first, but mount -a does not", mk)
	case s.Kind != wants:
		c.add(BadDir, Problem, fmt.Sprintf("%s is not a %s", c.e.Dir, wants), "the volume cannot be mounted there", suggest.Command("ls -ld %s", c.e.Dir))
	case s.Holds != "" && !c.e.Has("nonempty"):
		c.add(DirHolds, Warning, fmt.Sprintf("nothing is mounted at %s, but it contains %s", c.e.Dir, s.Holds),
			"these files are on the host's own disk. The volume is not mounted over them, unless the option nonempty allows it; it then hides them", suggest.Command("ls -la %s", c.e.Dir))
	}
}
