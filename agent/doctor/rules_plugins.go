package doctor

import (
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/volume"
)

// restartsOften is the number of restarts since the start of the agent from which a plugin is
// reported.
const restartsOften = 5

// agentService is the unit before which plugins' units must be ordered.
const agentService = "volagent.service"

// of returns the volumes of a plugin, and those of them that are on this host.
func (p Picture) of(plugin string) (ids, held []string) {
	for _, v := range p.Volumes {
		if v.Record.Volume.PluginID != plugin {
			continue
		}

		ids = append(ids, v.Record.Volume.ID)
		if v.Record.Held() {
			held = append(held, v.Record.Volume.ID)
		}
	}

	return ids, held
}

// listed names a few volumes.
func listed(ids []string) string {
	const most = 3
	words := make([]string, 0, most)
	for _, id := range ids[:min(len(ids), most)] {
		words = append(words, quote(id))
	}

	if len(ids) > most {
		return strings.Join(words, ", ") + " and more"
	}
	return strings.Join(words, ", ")
}

// plugins checks each plugin by itself.
func plugins(p Picture, f *findings) {
	for _, g := range p.Plugins {
		_, held := p.of(g.ID)
		state(f, g, held)
		if g.Pending != "" {
			f.add(PluginPending, Note, g.ID, g.ID).what("plugin %s: %s", quote(g.ID), g.Pending).
				then("until then it runs as it was before").do("volctl plugin restart %s", g.ID)
		}
		if g.View.Ready && g.View.Restarts >= restartsOften {
			f.add(PluginRestarts, Warning, g.ID, g.ID).what("plugin %s was restarted %d times since the agent was started", quote(g.ID), g.View.Restarts).
				then("each time its calls fail, and FUSE mounts that it serves break").do("volctl plugin logs %s", g.ID)
		}
		for _, w := range g.Warnings {
			f.add(PluginWarning, Warning, g.ID, g.ID).what("plugin %s: %s", quote(g.ID), w).
				then("it is used all the same, and may fail at its work").do("volctl plugin status %s", g.ID)
		}

		for _, u := range g.Units {
			if u.Asked && !slices.Contains(u.Before, agentService) {
				f.add(PluginOrder, Warning, g.ID, u.Name).what("unit %s of plugin %s does not come before %s", u.Name, quote(g.ID), agentService).
					then("at shutdown systemd may stop it before the agent, which then cannot unmount its volumes in order").do("systemctl edit %s", u.Name).
					note("with the lines [Unit] and Before=" + agentService)
			}
		}
	}
}

// note adds an instruction to the command.
func (f *Finding) note(words string) { f.Do += " (" + words + ")" }

// state reports a problem of a plugin's state.
func state(f *findings, g Plugin, held []string) {
	v := g.View
	needs := "no volume needs it now"
	if len(held) > 0 {
		needs = "what is mounted stays, and nothing of volume " + listed(held) + " can be mounted or unmounted through it"
	}
	switch {
	case v.Ready:
		if v.Reason != "" && v.Reason != v.State { // one of several parts is not ready
			f.add(PluginDown, Warning, g.ID, g.ID).what("plugin %s is ready in part: %s", quote(g.ID), v.Reason).
				then("the other parts do its work").do("volctl plugin status %s", g.ID)
		}
	case v.Stopped && len(held) == 0:
	case v.Stopped:
		f.add(PluginStopped, Warning, g.ID, g.ID).what("plugin %s was stopped on request, and volumes need it", quote(g.ID)).
			then("%s", needs).do("volctl plugin start %s", g.ID)
	case v.State == "starting" && v.Restarts == 0, v.State == "stopped" && len(held) == 0:
	default:
		severity := Problem
		if len(held) == 0 {
			severity = Warning
		}
		words := strings.ReplaceAll(v.State, "-", " ")
		if v.Reason != "" && v.Reason != v.State {
			words += ": " + v.Reason
		}
		f.add(PluginDown, severity, g.ID, g.ID).what("plugin %s is %s", quote(g.ID), words).then("%s", needs).do("volctl plugin logs %s", g.ID)
	}
}

// missing reports plugins that volumes name but no plugin file defines.
func missing(p Picture, f *findings) {
	known := map[string]bool{}
	for _, g := range p.Plugins {
		known[g.ID] = true
	}

	for _, v := range p.Volumes {
		id := v.Record.Volume.PluginID
		if known[id] {
			continue
		}

		known[id] = true
		ids, held := p.of(id)
		then := "they cannot be mounted"
		if len(held) > 0 {
			then = "what is mounted of " + listed(held) + " stays, and cannot be unmounted through it"
		}
		f.add(PluginUnknown, Problem, id, id).what("plugin %s does not exist, and is the plugin of volume %s", quote(id), listed(ids)).
			then("%s", then).do("volctl plugin init %s", id).note("or put its file back into the plugin directory")
	}
}

// capabilities reports plugins that can no longer undo their own calls.
func capabilities(p Picture, f *findings) {
	for _, g := range p.Plugins {
		if !g.View.Ready || g.View.Apart != nil {
			continue
		}

		for _, v := range p.Volumes {
			r := v.Record
			if r.Volume.PluginID != g.ID {
				continue
			}
			var lost string
			switch {
			case r.Node.Staged != volume.Absent && r.Node.Uses.Stage && !g.View.Info.Caps.Stage:
				lost = "STAGE_UNSTAGE_VOLUME"
			case r.Node.Attached != volume.Absent && r.Node.Uses.Attach && !g.View.Info.Caps.Attach:
				lost = "PUBLISH_UNPUBLISH_VOLUME"
			default:
				continue
			}
			f.add(PluginCapability, Problem, g.ID, g.ID+"/"+r.Volume.ID).what("plugin %s does not have the capability %s any more, with which volume %s was brought to this host", quote(g.ID), lost, quote(r.Volume.ID)).
				then("the volume stays on this host: the call that undoes it is refused").do("volctl plugin status %s -o wide", g.ID)
		}
	}
}

// deadlock reports a plugin that runs in a container of docker while docker's own volumes need it.
// At boot each waits for the other.
func deadlock(p Picture, f *findings) {
	for _, g := range p.Plugins {
		if g.Runtime == "" {
			continue
		}

		var ids []string
		for _, v := range p.Volumes {
			if v.Record.Volume.PluginID == g.ID && slices.ContainsFunc(v.Record.Ordered(), func(c volume.Claim) bool {
				return c.Owner.Kind == volume.OwnerRuntime && c.Owner.Runtime == g.Runtime
			}) {
				ids = append(ids, v.Record.Volume.ID)
			}
		}

		if len(ids) > 0 {
			f.add(PluginDeadlock, Warning, g.ID, g.ID).what("plugin %s runs in a container of %s, whose containers use its volumes: %s", quote(g.ID), g.Runtime, listed(ids)).
				then("at boot %s may wait for volumes whose plugin waits for %s, until one of them gives up", g.Runtime, g.Runtime).do("volctl plugin status %s", g.ID).
				note("run it by exec or as a unit instead")
		}
	}
}
