package suggest

import (
	"regexp"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/proc"
)

// longestUnit is the maximum length of a unit name, in bytes. It is one less than systemd's
// constant UNIT_NAME_MAX, which counts the terminating zero byte.
const longestUnit = 255

// unitName matches the unit names that systemd allows (systemd.unit(5)): a prefix that does not
// begin with "@", a dot, and a type.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]*\.[a-z]+$`)

var unitTypes = []string{"service", "scope", "slice", "socket", "mount", "automount", "swap", "target", "path", "timer", "device"}

// ValidUnit reports whether systemd allows the unit name. The name must include the type of the
// unit.
func ValidUnit(name string) bool {
	dot := strings.LastIndexByte(name, '.')
	return len(name) <= longestUnit && unitName.MatchString(name) && dot > 0 && slices.Contains(unitTypes, name[dot+1:])
}

// Stoppable reports whether an operator may stop a unit to end one of its processes. An operator
// must not stop a scope, such as a login session, or user@UID.service, which runs all other
// programs of the user.
func Stoppable(unit string) bool {
	return ValidUnit(unit) && strings.HasSuffix(unit, ".service") && !strings.HasPrefix(unit, "user@")
}

// UnitOf returns the system unit that contains a process, or "" if the process is in no unit. The
// argument is the content of /proc/PID/cgroup (cgroups(7)).
//
// Like systemd, UnitOf uses the outermost unit in the path, because only the service manager makes
// the directories down to that level. The directories below belong to the unit (Delegate=) and may
// have any name, even the name of another service. For example, the service managers of users and
// of containers make their own units there.
func UnitOf(cgroups string) string {
	var unit string
	for _, g := range proc.ParseCgroups(cgroups) {
		// Version 1 has a separate hierarchy for systemd, and the hierarchy of version 2 has no
		// name. If both are mounted, systemd uses one of them. In the other hierarchy, all
		// processes are at the root.
		if g.Controllers == "name=systemd" || g.Controllers == "" {
			if found := outermost(g.Path); found != "" {
				unit = found
			}
		}
	}

	return unit
}

// outermost returns the first component of a control group's path that is not a slice. It returns
// "" if this component is not a valid unit name.
func outermost(path string) string {
	for component := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		name := strings.TrimPrefix(component, "_") // systemd puts "_" before names such as "cgroup.x"
		switch {
		case !ValidUnit(name):
			return ""
		case !strings.HasSuffix(name, ".slice"):
			return name
		}
	}

	return ""
}
