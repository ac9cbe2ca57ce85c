package doctor

import (
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// restartsOften is the number of restarts after which the doctor reports a plugin. Only restarts
// since the start of the agent count.
const restartsOften = 5

// agentService is the agent's unit. The unit of a plugin must be ordered before agentService, so
// that systemd stops the plugin after the agent.
const agentService = "volagent.service"

// of returns the ids of all volumes of a plugin, and the ids of those that are on this host.
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

// listed returns the quoted ids of up to three volumes.
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

// plugins checks the state, the restarts, the warnings and the units of each plugin.
func plugins(p Picture, f *findings) {
	for _, g := range p.Plugins {
		_, held := p.of(g.ID)
		state(f, g, held)
		if g.Pending != "" {
			f.add(PluginPending, Note, g.ID, g.ID).what("plugin %s: %s", quote(g.ID), g.Pending).
				then("until then the plugin runs with its previous definition").do("volctl plugin restart %s", g.ID)
		}
		if g.View.Ready && g.View.Restarts >= restartsOften {
			f.add(PluginRestarts, Warning, g.ID, g.ID).what("plugin %s was restarted %d times since the start of the agent", quote(g.ID), g.View.Restarts).
				then("with each restart its running calls fail, and the FUSE mounts that it serves break").do("volctl plugin logs %s", g.ID)
		}
		for _, w := range g.Warnings {
			f.add(PluginWarning, Warning, g.ID, g.ID).what("plugin %s: %s", quote(g.ID), w).
				then("the agent uses the plugin anyway; calls to it may fail").do("volctl plugin status %s", g.ID)
		}
		if lack := g.View.FenceLack(); lack != "" {
			f.add(PluginFence, Warning, g.ID, g.ID).what("plugin %s: %s", quote(g.ID), lack).
				then("no host takes over its volumes from a lost host by a detach").do("volctl plugin status %s", g.ID).
				note("and remove the key fence from its file")
		}

		for _, u := range g.Units {
			if u.Asked && !slices.Contains(u.Before, agentService) {
				f.add(PluginOrder, Warning, g.ID, u.Name).what("unit %s of plugin %s is not ordered before %s", u.Name, quote(g.ID), agentService).
					then("at shutdown systemd may stop the plugin first, and the agent then cannot unmount its volumes").do("systemctl edit %s", u.Name).
					note("with the lines [Unit] and Before=" + agentService)
			}
		}
	}
}

// note appends an instruction to the command of a finding.
func (f *Finding) note(words string) { f.Do += " (" + words + ")" }

// state reports a plugin that is not ready, and the consequence for its volumes on this host.
func state(f *findings, g Plugin, held []string) {
	v := g.View
	needs := "no volume needs it now"
	if len(held) > 0 {
		needs = "existing mounts stay; the agent cannot mount or unmount volume " + listed(held) + " without the plugin"
	}
	switch {
	case v.Ready:
		if v.Reason != "" && v.Reason != v.State { // a different part of the plugin is not ready
			f.add(PluginDown, Warning, g.ID, g.ID).what("some parts of plugin %s are not ready: %s", quote(g.ID), v.Reason).
				then("its other parts still work").do("volctl plugin status %s", g.ID)
		}
	case v.Stopped && len(held) == 0:
	case v.Stopped:
		f.add(PluginStopped, Warning, g.ID, g.ID).what("plugin %s was stopped on request, but volumes need it", quote(g.ID)).
			then("%s", needs).do("volctl plugin start %s", g.ID)
	case v.State == plugin.Starting && v.Restarts == 0, v.State == plugin.Stopped && len(held) == 0:
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

// missing reports plugins that have no plugin file although volumes refer to them.
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
		then := "its volumes cannot be mounted"
		if len(held) > 0 {
			then = "existing mounts of " + listed(held) + " stay; the agent cannot unmount them without the plugin"
		}
		f.add(PluginUnknown, Problem, id, id).what("plugin %s does not exist, but volume %s needs it", quote(id), listed(ids)).
			then("%s", then).do("volctl plugin init %s", id).note("or put its file back into the plugin directory")
	}
}

// capabilities reports a plugin that has lost a capability and can therefore no longer undo earlier
// calls for a volume on this host.
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
			f.add(PluginCapability, Problem, g.ID, g.ID+"/"+r.Volume.ID).what("plugin %s no longer has the capability %s, which it used to bring volume %s to this host", quote(g.ID), lost, quote(r.Volume.ID)).
				then("the volume stays on this host, because the plugin refuses the call that would remove it").do("volctl plugin status %s -o wide", g.ID)
		}
	}
}

// deadlock reports a plugin that runs in a container of docker or podman if other containers of the
// same runtime use the plugin's volumes. At boot, the plugin and the runtime may wait for each
// other.
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
				then("at boot %s may wait for volumes while their plugin waits for %s, until one of them times out", g.Runtime, g.Runtime).do("volctl plugin status %s", g.ID).
				note("run it by exec or as a unit instead")
		}
	}
}
