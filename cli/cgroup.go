package cli

import "strings"

// manualAlloc is the alloc of claims made from a shell.
const manualAlloc = "manual"

// allocFromCgroup finds the systemd service that a process belongs to, from the
// content of its /proc/PID/cgroup (see cgroups(7)): the innermost unit decides.
// A login session is a scope, and so is a container; those and what cannot be
// read are "manual". A user's own service manager is no service of this kind.
func allocFromCgroup(content string) string {
	var path string
	for line := range strings.Lines(content) {
		parts := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		// On version 1 systemd has a hierarchy of its own; on version 2 there
		// is only the one without controllers. A hierarchy that systemd does not
		// use has everything at its root.
		if parts[1] == "name=systemd" && parts[2] != "/" {
			path = parts[2]
			break
		}
		if parts[0] == "0" && parts[1] == "" {
			path = parts[2]
		}
	}
	units := strings.Split(path, "/")
	for i := len(units) - 1; i >= 0; i-- {
		switch unit := units[i]; {
		case strings.HasSuffix(unit, ".scope"), strings.HasPrefix(unit, "user@"):
			return manualAlloc
		case strings.HasSuffix(unit, ".service") && unit != ".service":
			return unit
		}
	}
	return manualAlloc
}

// defaultAlloc is the alloc of a claim that names none.
func (a *app) defaultAlloc() string {
	content, err := a.env.Cgroup()
	if err != nil {
		return manualAlloc // no proc: no service either
	}
	return allocFromCgroup(string(content))
}
