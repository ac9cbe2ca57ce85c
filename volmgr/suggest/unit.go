package suggest

import (
	"regexp"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/proc"
)

// longestUnit is the maximum length of a unit name, in bytes. UNIT_NAME_MAX of systemd is greater
// by one, because it counts the final zero.
const longestUnit = 255

// unitName matches the names that systemd allows (systemd.unit(5)): a prefix that does not begin
// with "@", and a type.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]*\.[a-z]+$`)

var unitTypes = []string{"service", "scope", "slice", "socket", "mount", "automount", "swap", "target", "path", "timer", "device"}

// ValidUnit reports whether systemd allows the unit name. The name must include the type of the
// unit.
func ValidUnit(name string) bool {
	dot := strings.LastIndexByte(name, '.')
	return len(name) <= longestUnit && unitName.MatchString(name) && dot > 0 && slices.Contains(unitTypes, name[dot+1:])
}

// Stoppable reports whether an operator may stop a unit to end one of its processes. A scope, such
// as a login session, must not be stopped. The same is true for user@UID.service, because it runs
// all other programs of that user too.
func Stoppable(unit string) bool {
	return ValidUnit(unit) && strings.HasSuffix(unit, ".service") && !strings.HasPrefix(unit, "user@")
}

// UnitOf returns the system unit that contains a process, or "" if there is none. Its argument is
// the content of /proc/PID/cgroup (cgroups(7)).
//
// Like systemd, UnitOf uses the outermost unit in the path, because only the service manager makes
// the directories down to that level. Directories below it belong to the unit (Delegate=) and may
// have any name, even that of another service. The service managers of users and of containers make
// their units there.
func UnitOf(cgroups string) string {
	var unit string
	for _, g := range proc.ParseCgroups(cgroups) {
		// Version 1 has a separate hierarchy for systemd, and the hierarchy of version 2 has no
		// name. If both are mounted, systemd uses one of them, and all processes are at the root of
		// the other.
		if g.Controllers == "name=systemd" || g.Controllers == "" {
			if found := outermost(g.Path); found != "" {
				unit = found
			}
		}
	}

	return unit
}

// outermost returns the first component of a control group's path that is not a slice. It returns
// "" if that component is not a valid unit name.
func outermost(path string) string {
	for component := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		name := strings.TrimPrefix(component, "_") // systemd escapes names such as "cgroup.x" in this way
		switch {
		case !ValidUnit(name):
			return ""
		case !strings.HasSuffix(name, ".slice"):
			return name
		}
	}

	return ""
}
