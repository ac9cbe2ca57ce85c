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
	Netdev    = "fstab-netdev"    // no _netdev: it stops the boot
	Nofail    = "fstab-nofail"    // no nofail: its failure makes remote-fs.target fail
	BadOption = "fstab-option"    // an unknown option, or a bad value
	BadVolume = "fstab-volume"    // no volume with that id, or no valid id
	BadDir    = "fstab-dir"       // the volume cannot be mounted at that directory
	DirHolds  = "fstab-dir-holds" // the directory is not empty while nothing is mounted there
	Twice     = "fstab-duplicate" // two entries for one directory
	Unread    = "fstab-unread"    // a table or a unit that cannot be read
	NoPlugin  = "fstab-plugin"    // the volume's plugin does not exist
	UnitOrder = "unit-order"      // a unit that is not ordered after the agent
)

// Kinds lists all kinds of faults.
var Kinds = []string{Netdev, Nofail, BadOption, BadVolume, BadDir, DirHolds, Twice, Unread, NoPlugin, UnitOrder}

// The severities of faults.
const (
	Problem = "problem"
	Warning = "warning"
)

// agentUnit is the service that mounts volumes.
const agentUnit = "volagent.service"

// Fault is one mistake in an entry.
type Fault struct {
	Kind     string
	Severity string
	Subject  string // the directory or, without one, the place of the entry
	What     string // one sentence
	Then     string // the consequence, in one sentence
	Do       string // the command that helps
}

// Spot is the result of a look at a directory.
type Spot struct {
	Mounted bool   // something is mounted there, so the directory below is unknown
	Kind    string // "directory", "file", "other"; empty if nothing exists there
	Holds   string // a few of the names in it; empty if there are none
	Fault   string // why the directory cannot be examined
}

// Check checks entries against the rules of mount(8), systemd and the agent. It calls look for each
// directory. look must not wait for storage that hangs.
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
					"only one of them can be mounted there, and which one is a matter of chance", c.edit())
			} else {
				at[e.Dir] = e
				c.dir(look(e.Dir))
			}
		}

		all = append(all, c.found...)
	}

	return all
}

// checker checks one entry.
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

// edit returns the command that opens the entry in an editor.
func (c *checker) edit() string { return Edit(c.e) }

// Edit returns the command with which a person changes an entry.
func Edit(e Entry) string {
	if e.Unit != "" {
		return suggest.Command("systemctl edit --full %s", e.Unit)
	}
	return suggest.Command("${EDITOR:-vi} +%d %s", e.Line, e.File) + " && systemctl daemon-reload"
}

// boot checks when the volume is mounted and unmounted.
func (c *checker) boot() {
	automount, noauto := c.e.Has("x-systemd.automount"), c.e.Has("noauto")
	if !c.e.Has("_netdev") {
		severity, then := Problem, "it is taken for a local file system, which is mounted before the agent is started: the boot stops in emergency mode"
		if noauto && !automount || c.e.Unit != "" {
			severity, then = Warning, "it is taken for a local file system, which goes after the agent at shutdown: then nobody unmounts the volume in order"
		}
		c.add(Netdev, severity, c.e.Place()+" has no option _netdev", then, c.edit())
	}

	if c.e.Unit == "" && !c.e.Has("nofail") && !noauto {
		c.add(Nofail, Warning, c.e.Place()+" has no option nofail",
			"a volume that cannot be mounted makes remote-fs.target fail, and the boot waits for it", c.edit())
	}

	if c.e.Unit != "" && !slices.Contains(c.e.After, agentUnit) {
		c.add(UnitOrder, Warning, fmt.Sprintf("unit %s does not come after %s", c.e.Unit, agentUnit),
			"it may be started while no agent answers, and at shutdown the agent may end before it", suggest.Command("volctl systemd generate %s %s --install", c.e.Volume, c.e.Dir))
	}
}

func (c *checker) options() {
	for _, o := range c.e.Options {
		if err := CheckOption(o); err != nil {
			c.add(BadOption, Problem, fmt.Sprintf("%s: %v", c.e.Place(), err), "it is not mounted: an option that nobody knows is refused", c.edit())
		}
	}
}

// names checks the volume and the directory. It reports whether the directory can be examined.
func (c *checker) names() bool {
	if id := VolumeOf(c.e); id == "" || id == "." || id == ".." || len(id) > 128 || strings.Contains(id, "/") {
		c.add(BadVolume, Problem, fmt.Sprintf("%s: %q is no id of a volume", c.e.Place(), c.e.Volume), "it is not mounted", c.edit())
	}
	if !path.IsAbs(c.e.Dir) || path.Clean(c.e.Dir) == "/" {
		c.add(BadDir, Problem, fmt.Sprintf("%s: nothing can be mounted at %q", c.e.Place(), c.e.Dir), "it is not mounted", c.edit())
		return false
	}
	return true
}

// VolumeOf returns the id of the volume that an entry names.
func VolumeOf(e Entry) string {
	if n, ok := e.Value("per_alloc"); ok {
		return e.Volume + "[" + n + "]"
	}
	return e.Volume
}

// dir checks the current state of the directory.
func (c *checker) dir(s Spot) {
	mode, _ := c.e.Value("attachment_mode")
	wants, mk := "directory", suggest.Command("mkdir -p %s", c.e.Dir)

	if mode == "block-device" {
		wants, mk = "file", suggest.Command("touch %s", c.e.Dir)
	}

	switch {
	case s.Fault != "":
		c.add(BadDir, Warning, fmt.Sprintf("%s cannot be looked at: %s", c.e.Dir, s.Fault), "it is not known whether the volume can be mounted there", suggest.Command("ls -ld %s", c.e.Dir))
	case s.Mounted:
	case s.Kind == "":
		c.add(BadDir, Problem, fmt.Sprintf("there is no %s", c.e.Dir), "mount(8) does not mount the volume; systemd makes the directory first, mount -a does not", mk)
	case s.Kind != wants:
		c.add(BadDir, Problem, fmt.Sprintf("%s is no %s", c.e.Dir, wants), "the volume cannot be mounted there", suggest.Command("ls -ld %s", c.e.Dir))
	case s.Holds != "" && !c.e.Has("nonempty"):
		c.add(DirHolds, Warning, fmt.Sprintf("nothing is mounted at %s, and it holds %s", c.e.Dir, s.Holds),
			"that lies on the host's own disk; the volume is not mounted over it unless the option nonempty allows that, and then hides it", suggest.Command("ls -la %s", c.e.Dir))
	}
}
