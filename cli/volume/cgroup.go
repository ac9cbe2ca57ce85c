package volume

import (
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/volmgr/proc"
)

// manualAlloc is the default alloc of a claim that a person makes in a shell.
const manualAlloc = "manual"

// serviceFromCgroup returns the systemd service of a process. The argument is the content of the
// process's /proc/PID/cgroup (see cgroups(7)). The innermost unit decides. If this unit is a scope,
// such as a login session or container, or a user's service manager (user@UID.service), it returns
// "".
func serviceFromCgroup(content string) string {
	var path string
	for _, g := range proc.ParseCgroups(content) {
		// With cgroup v1, systemd has a hierarchy of its own. With cgroup v2, there is only one
		// hierarchy, and its line contains no controllers. If systemd does not use a hierarchy, all
		// processes are in its root.
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

// defaultAlloc returns the alloc of a claim if the user has not set --alloc.
func defaultAlloc(a *command.App) string {
	content, err := a.Env.Cgroup()
	if service := serviceFromCgroup(string(content)); err == nil && service != "" {
		return service
	}
	return manualAlloc // the caller is not a service, or its service is unknown
}

// defaultOwner returns the owner of a claim if the user has not set --owner. The owner is the
// current invocation of the calling service. systemd passes the invocation id to all processes of a
// service. A claim from a user service gets no owner, because the agent cannot query the user's
// service manager.
func defaultOwner(a *command.App) api.Owner {
	content, err := a.Env.Cgroup()
	service, invocation := serviceFromCgroup(string(content)), a.Env.Getenv("INVOCATION_ID")
	if err != nil || service == "" || invocation == "" || strings.Contains(string(content), "/user@") {
		return api.Owner{}
	}
	return api.Owner{Kind: api.OwnerUnit, Unit: service, Invocation: invocation}
}
