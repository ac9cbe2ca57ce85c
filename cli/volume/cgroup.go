package volume

import (
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/volmgr/proc"
)

// manualAlloc is the default alloc of a claim that a person makes from a shell.
const manualAlloc = "manual"

// serviceFromCgroup returns the systemd service of a process, given the content of its
// /proc/PID/cgroup (see cgroups(7)). The innermost unit decides. It returns "" if that unit is a
// scope, as for login sessions and containers, or the service manager of a user (user@UID.service).
func serviceFromCgroup(content string) string {
	var path string
	for _, g := range proc.ParseCgroups(content) {
		// On cgroup version 1, systemd has its own hierarchy. On version 2, there is only one
		// hierarchy, whose line names no controllers. In a hierarchy that systemd does not use, all
		// processes are at the root.
		if g.Controllers == "name=systemd" && g.Path != "/" {
			path = g.Path
			break
		}

		if g.Unified() {
			path = g.Path
		}
	}

	units := strings.Split(path, "/")
	for i := len(units) - 1; i >= 0; i-- {
		switch unit := units[i]; {
		case strings.HasSuffix(unit, ".scope"), strings.HasPrefix(unit, "user@"):
			return ""
		case strings.HasSuffix(unit, ".service") && unit != ".service":
			return unit
		}
	}

	return ""
}

// defaultAlloc returns the alloc for a claim whose command line contains no --alloc.
func defaultAlloc(a *command.App) string {
	content, err := a.Env.Cgroup()
	if service := serviceFromCgroup(string(content)); err == nil && service != "" {
		return service
	}
	return manualAlloc // without /proc, the command cannot find the service
}

// defaultOwner returns the owner for a claim whose command line contains no --owner. It is the
// current invocation of the calling service. systemd passes the id of the invocation to all
// processes of the service. A service of a user's own service manager gets no owner, because the
// agent cannot query that manager.
func defaultOwner(a *command.App) api.Owner {
	content, err := a.Env.Cgroup()
	service, invocation := serviceFromCgroup(string(content)), a.Env.Getenv("INVOCATION_ID")
	if err != nil || service == "" || invocation == "" || strings.Contains(string(content), "/user@") {
		return api.Owner{}
	}
	return api.Owner{Kind: api.OwnerUnit, Unit: service, Invocation: invocation}
}
