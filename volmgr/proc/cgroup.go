package proc

import (
	"fmt"
	"os"
	"strings"
)

// Cgroup is the control group of a process in one hierarchy. It corresponds to one line of
// /proc/PID/cgroup (cgroups(7)).
type Cgroup struct {
	// Hierarchy is the number of the hierarchy. The unified hierarchy of version 2 has the number
	// "0".
	Hierarchy string
	// Controllers names the controllers of a version 1 hierarchy. It is "name=systemd" for
	// systemd's own hierarchy, and empty for version 2.
	Controllers string
	// Path is the path of the group, relative to the root of the cgroup namespace of the process
	// that reads the file.
	Path string
}

// Unified reports whether the group belongs to version 2.
func (c Cgroup) Unified() bool { return c.Hierarchy == "0" && c.Controllers == "" }

// Systemd reports whether the hierarchy is one that systemd may manage: the hierarchy of version 2,
// or systemd's own hierarchy of version 1.
func (c Cgroup) Systemd() bool { return c.Unified() || c.Controllers == "name=systemd" }

// Cgroups returns the control groups of a process, one for each hierarchy.
func Cgroups(pid int) ([]Cgroup, error) { return readCgroups(fmt.Sprintf("/proc/%d/cgroup", pid)) }

// OwnCgroups returns the control groups of this process.
func OwnCgroups() ([]Cgroup, error) { return readCgroups("/proc/self/cgroup") }

func readCgroups(file string) ([]Cgroup, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return ParseCgroups(string(data)), nil
}

// ParseCgroups parses the content of /proc/PID/cgroup. It ignores malformed lines.
func ParseCgroups(content string) []Cgroup {
	var all []Cgroup
	for line := range strings.Lines(content) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) == 3 {
			all = append(all, Cgroup{Hierarchy: fields[0], Controllers: fields[1], Path: fields[2]})
		}
	}
	return all
}
