package plugins

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// byDocker reports whether docker runs the given part of a plugin.
func byDocker(part supervisor.Status) bool {
	return part.Running["container.runtime"] == plugin.RuntimeDocker
}

// deadlock returns a warning if docker runs a plugin and also needs the plugin for its own volumes.
// When the host boots, docker starts the containers with these volumes before it starts the plugin.
// deadlock returns "" if there is no such problem.
func (p Set) deadlock(st supervisor.Status) string {
	if !slices.ContainsFunc(st.Parts, byDocker) {
		return ""
	}

	var names []string
	for _, v := range statedb.RuntimeVolumes.All(p.Usage.Records) {
		if r, ok := p.Usage.Records.Volume(v.VolumeID); ok && v.Runtime == plugin.RuntimeDocker && r.Volume.PluginID == st.ID {
			names = append(names, v.Name)
		}
	}

	if len(names) == 0 {
		return ""
	}

	slices.Sort(names)
	return fmt.Sprintf("docker runs it, and uses it for volumes of its own (%s): at a boot, and when docker is started again, their containers fail that start before it; "+
		"have podman, a unit or exec run it", strings.Join(names, ", "))
}

// Deadlocks returns the warnings of deadlock for all plugins, as problems for the status of the
// host.
func (p Set) Deadlocks() (problems []api.Problem) {
	for _, st := range p.Statuses() {
		if words := p.deadlock(st); words != "" {
			problems = append(problems, api.Problem{Subject: st.ID, Message: words, Command: suggest.Command("volctl plugin status %s", st.ID)})
		}
	}

	return problems
}

// WarnDeadlocks emits one event for each plugin that has a warning of deadlock. It checks for new
// warnings at the given interval until ctx ends.
func (p Set) WarnDeadlocks(ctx context.Context, every time.Duration, events func(...volume.Event)) {
	told := map[string]bool{}
	tick := time.NewTicker(every)
	defer tick.Stop()

	for {
		for _, d := range p.Deadlocks() {
			if !told[d.Subject] {
				events(volume.Event{Type: volume.EventPluginWarning, Plugin: d.Subject, Message: d.Message})
			}
			told[d.Subject] = true
		}

		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
