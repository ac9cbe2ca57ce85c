package plugins

import (
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/supervisor"
)

// List returns all plugins for the API.
func (p Set) List() []api.Plugin {
	out := []api.Plugin{}
	for _, st := range p.Statuses() {
		out = append(out, p.show(st))
	}

	off := p.Disabled()
	for _, f := range off {
		at := slices.IndexFunc(out, func(known api.Plugin) bool { return known.ID == f.ID })
		if at < 0 {
			out = append(out, p.disabled(f.ID, filesOf(f.ID, off)))
		}
	}

	slices.SortStableFunc(out, func(a, b api.Plugin) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// disabled describes a plugin whose files all have enabled: false. The argument files contains them.
func (p Set) disabled(id string, files []supervisor.Status) api.Plugin {
	out := api.Plugin{ID: id, State: string(files[0].State), Reason: files[0].Reason, Runner: files[0].Runner, Type: files[0].Type, Volumes: []string{}}
	for _, f := range files {
		out.Parts = append(out.Parts, showPart(f))
	}

	p.use(&out)
	return out
}

// disabledFiles returns the disabled files of one plugin.
func (p Set) disabledFiles(id string) []supervisor.Status { return filesOf(id, p.Disabled()) }

func filesOf(id string, files []supervisor.Status) []supervisor.Status {
	return slices.DeleteFunc(slices.Clone(files), func(f supervisor.Status) bool { return f.ID != id })
}

// Get returns one plugin for the API.
func (p Set) Get(id string) (api.Plugin, bool) {
	st, err := p.Status(id)
	if err == nil {
		return p.show(st), true
	}

	if files := p.disabledFiles(id); len(files) > 0 {
		return p.disabled(id, files), true
	}
	return api.Plugin{}, false
}

func (p Set) show(st supervisor.Status) api.Plugin {
	out := api.Plugin{
		ID: st.ID, Type: st.Type, Runner: st.Runner, Provider: st.Info.Driver, Version: st.Info.Version,
		State: string(st.State), Reason: st.Reason, Since: st.Since, Next: st.Next, PID: st.PID, Restarts: st.Restarts,
		NodeID: st.Info.NodeID, Topology: st.Info.Topology, MaxVolumes: st.Info.MaxVolumes, Volumes: []string{},
		ControllerCapabilities: st.Info.ControllerCaps, NodeCapabilities: st.Info.NodeCaps,
		Socket: st.Socket, LogFile: st.LogFile, LastExit: st.LastExit, LastLog: st.LastLog, Pending: st.Pending,
		ControllersHealthy: st.Controllers.Healthy, ControllersExpected: st.Controllers.Expected,
		NodesHealthy: st.Nodes.Healthy, NodesExpected: st.Nodes.Expected,
		Warnings: st.Warnings,
	}

	view := p.View(st.ID)
	out.Fence = string(view.Fence)
	fenceLack := view.FenceLack()
	if fenceLack != "" {
		out.Warnings = append(slices.Clone(out.Warnings), fenceLack)
	}

	deadlock := p.deadlock(st)
	if deadlock != "" {
		out.Warnings = append(slices.Clone(out.Warnings), deadlock)
	}
	for _, part := range st.Parts {
		shown := showPart(part)
		if deadlock != "" && byDocker(part) {
			shown.Warnings = append(slices.Clone(shown.Warnings), deadlock)
		}
		if fenceLack != "" && part.Running["fence"] != "" {
			shown.Warnings = append(slices.Clone(shown.Warnings), fenceLack)
		}
		out.Parts = append(out.Parts, shown)
	}

	for _, f := range p.disabledFiles(st.ID) {
		out.Parts = append(out.Parts, showPart(f))
	}

	p.use(&out)
	return out
}

// use adds the volumes that use the plugin.
func (p Set) use(out *api.Plugin) {
	for _, r := range p.Usage.Records.Volumes() {
		if r.Volume.PluginID != out.ID {
			continue
		}

		out.Volumes = append(out.Volumes, r.Volume.ID)
		if r.Held() {
			out.Staged++
		}
		out.FUSEClaims += fuseClaims(r)
	}

	slices.Sort(out.Volumes)
}

func showPart(st supervisor.Status) api.PluginPart {
	return api.PluginPart{
		Type: st.Type, Instance: st.Instance, State: string(st.State), Reason: st.Reason, Since: st.Since, Next: st.Next,
		Restarts: st.Restarts, PID: st.PID, Socket: st.Socket, Runner: st.Runner, File: st.File, Registered: st.Registered, Version: st.Info.Version,
		LastExit: st.LastExit, LogFile: st.LogFile, LastLog: st.LastLog, Pending: st.Pending, Running: st.Running, Wanted: st.Wanted,
		Warnings: st.Warnings,
	}
}

// IDs returns the ids of all plugins, sorted.
func (p Set) IDs() []string {
	var ids []string
	for _, st := range p.Statuses() {
		ids = append(ids, st.ID)
	}
	return ids
}
