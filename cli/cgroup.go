package cli

import (
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/proc"
)

// manualAlloc is the alloc of claims made from a shell.
const manualAlloc = "manual"

// serviceFromCgroup finds the systemd service that a process belongs to, from the
// content of its /proc/PID/cgroup (see cgroups(7)): the innermost unit decides. It
// is empty if there is none: a login session is a scope, and so is a container. A
// user's own service manager is no service of this kind.
func serviceFromCgroup(content string) string {
	var path string
	for _, g := range proc.ParseCgroups(content) {
		// On version 1 systemd has a hierarchy of its own; on version 2 there
		// is only the one without controllers. A hierarchy that systemd does not
		// use has everything at its root.
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

// defaultAlloc is the alloc of a claim that names none.
func (a *app) defaultAlloc() string {
	content, err := a.env.Cgroup()
	if service := serviceFromCgroup(string(content)); err == nil && service != "" {
		return service
	}
	return manualAlloc // no proc: no service either
}

// defaultOwner is the owner of a claim that names none: the calling service as it
// was started this time, which systemd tells all of its processes. The agent
// cannot ask a user's own service manager.
func (a *app) defaultOwner() api.Owner {
	content, err := a.env.Cgroup()
	service, invocation := serviceFromCgroup(string(content)), a.env.Getenv("INVOCATION_ID")
	if err != nil || service == "" || invocation == "" || strings.Contains(string(content), "/user@") {
		return api.Owner{}
	}
	return api.Owner{Kind: api.OwnerUnit, Unit: service, Invocation: invocation}
}
