package volume

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// parseOwner parses pid:N, unit:NAME or none.
func parseOwner(s string) (api.Owner, error) {
	kind, name, named := strings.Cut(s, ":")
	switch {
	case s == api.OwnerNone:
		return api.Owner{Kind: api.OwnerNone}, nil
	case kind == api.OwnerPID && named:
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			return api.Owner{Kind: api.OwnerPID, PID: pid}, nil
		}
		return api.Owner{}, command.Usage("--owner pid:$$", "--owner pid: needs the number of a process, not %q", name)
	case kind == api.OwnerUnit && named && name != "":
		if !strings.Contains(name, ".") {
			name += ".service" // systemctl also adds this suffix
		}
		return api.Owner{Kind: api.OwnerUnit, Unit: name}, nil
	default:
		return api.Owner{}, command.Usage("--owner pid:N, --owner unit:NAME or --owner none", "unknown --owner %q", s)
	}
}

// ownerText describes the owner of a claim for a screen. If the owner is a unit with the same name
// as the alloc, the text omits the name.
func ownerText(c *api.Claim) string {
	o := c.Owner
	var who, how string

	switch o.Kind {
	case api.OwnerPID:
		who, how = output.Joined(" ", fmt.Sprintf("pid %d", o.PID), o.Command), o.State
	case api.OwnerUnit:
		if who, how = "unit", o.State; o.Unit != c.Alloc {
			who += " " + o.Unit
		}
		if o.PID != 0 {
			how = fmt.Sprintf("%s %d", how, o.PID)
		}
	case api.OwnerMount:
		if who, how = "mount", o.State; o.PID != 0 { // the volume is not mounted yet
			who = output.Joined(" ", fmt.Sprintf("mount by pid %d", o.PID), o.Command)
		} else if how == api.OwnerRunning {
			how = ""
		}
	case api.OwnerRuntime:
		who, how = o.Runtime, fmt.Sprintf("%d containers", o.References)
		if o.References == 1 {
			how = "1 container"
		}
	default:
		return output.Dash(o.Kind)
	}

	return output.Joined(", ", who, how)
}
