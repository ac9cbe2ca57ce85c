package apiserver

import (
	"net/http"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

func modifyVolume(s *Server, w http.ResponseWriter, r *http.Request) error {
	var q api.ModifyRequest
	if err := body(w, r, &q); err != nil {
		return err
	}

	id := r.PathValue("id")
	rec, change, err := s.o.Volumes.Modify(r.Context(), id, q.Mutable)
	if err != nil {
		return s.withLog(err, s.pluginOf(id), id)
	}
	return s.answer(w, api.VolumeResult{Outcome: change.Outcome, Changes: change.Fields, Volume: s.describe(r.Context(), rec)})
}

func getStats(s *Server, w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	got, err := s.o.Volumes.Stats(r.Context(), id)
	if err != nil {
		return s.withLog(err, s.pluginOf(id), id)
	}
	return s.answer(w, toStats(id, got))
}

func getReport(s *Server, w http.ResponseWriter, r *http.Request) error {
	within, err := duration(r, "within")
	if err != nil {
		return err
	}

	storage, err := flag(r, "storage")
	if err != nil {
		return err
	}

	rec, err := s.record(r)
	if err != nil {
		return err
	}

	got, err := s.o.Volumes.Report(r.Context(), rec.Volume.ID, within, storage)
	if err != nil {
		return s.withLog(err, rec.Volume.PluginID, rec.Volume.ID)
	}
	return s.answer(w, toReport(rec.Volume.ID, got))
}

func getCapacity(s *Server, w http.ResponseWriter, r *http.Request) error {
	var q api.CapacityRequest
	if err := body(w, r, &q); err != nil {
		return err
	}

	id := r.PathValue("id")
	ask := call.CapacityRequest{Parameters: q.Parameters, Topology: q.Topology}
	if len(q.Capabilities) > 0 {
		ask.Capabilities = fromSpec(api.VolumeSpec{Capabilities: q.Capabilities}).Capabilities
	}
	got, err := s.o.Volumes.Capacity(r.Context(), id, ask)
	if err != nil {
		return s.withLog(err, id)
	}
	return s.answer(w, api.Capacity(got))
}

func pluginHealth(s *Server, w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	got, err := s.o.Volumes.Health(r.Context(), id)
	if err != nil {
		return s.withLog(err, id)
	}

	registered := s.registered(id)
	out := api.PluginHealth{
		Storage: toFindings(volume.ByNode, got.Storage), Volumes: []api.VolumeHealth{}, More: got.More, Asked: []string{}, Silent: got.Silent,
	}
	for _, h := range got.Volumes {
		out.Volumes = append(out.Volumes, api.VolumeHealth{
			ExternalID: h.ExternalID, Volume: registered[h.ExternalID], Health: toFindings(volume.ByController, h.Entries),
		})
	}

	for _, k := range got.Asked {
		out.Asked = append(out.Asked, string(k))
	}
	return s.answer(w, out)
}

// pluginVolumes lists the volumes that a plugin reports, one in each line, as they arrive. The list
// ends when the caller disconnects.
func pluginVolumes(s *Server, w http.ResponseWriter, r *http.Request) error {
	limit, err := number(r, "limit", 0)
	if err != nil {
		return err
	}

	id := r.PathValue("id")
	begun := false
	send := func(line api.StorageVolumeLine) error {
		if !begun {
			w.Header().Set("Content-Type", "application/x-ndjson")
			begun = true
		}
		return api.EncodeJSON(w, line)
	}

	registered := s.registered(id)
	more, err := s.o.Volumes.List(r.Context(), id, limit, func(v call.StorageVolume) error {
		out := toStorage(v)
		out.Volume = registered[v.ExternalID]
		return send(api.StorageVolumeLine{Volume: out})
	})

	if r.Context().Err() != nil && begun {
		panic(http.ErrAbortHandler) // a caller that is still connected then sees that the answer is incomplete
	}
	if err = s.withLog(err, id); err != nil && !begun {
		return err
	}

	last := api.StorageVolumeLine{End: &api.ListEnd{More: more}}
	if err != nil {
		last = api.StorageVolumeLine{Error: toAPI(err)}
	}
	if err := send(last); err != nil {
		s.o.Log.Debug("cannot send the end of a listing", "error", err)
	}
	return nil
}

// registered maps external ids to volume ids, for the registered volumes of a plugin's driver.
func (s *Server) registered(pluginID string) map[string]string {
	driver, out := s.o.Plugins.View(pluginID).Info.Driver, map[string]string{}
	for _, r := range s.o.Records.Volumes() {
		if r.Volume.Driver == driver && r.Volume.ExternalID != "" {
			out[r.Volume.ExternalID] = r.Volume.ID
		}
	}
	return out
}

// toStats converts the stats of a report. If the report has none, it sets only the volume's id and
// the time.
func toStats(id string, r volume.Report) api.Stats {
	out := api.Stats{Volume: id, At: r.StatsAt}
	if r.Stats == nil {
		return out
	}
	if b := r.Stats.Bytes; b != nil {
		out.BytesTotal, out.BytesUsed, out.BytesAvailable = b.Total, b.Used, b.Available
	}
	if i := r.Stats.Inodes; i != nil {
		out.InodesTotal, out.InodesUsed, out.InodesAvailable = i.Total, i.Used, i.Available
	}
	return out
}

func toStorage(v call.StorageVolume) *api.StorageVolume {
	out := &api.StorageVolume{
		ExternalID: v.ExternalID, Capacity: v.Capacity, Context: v.Context, Topologies: v.Topologies,
		SnapshotID: v.SnapshotID, CloneID: v.CloneID, PublishedNodes: v.PublishedNodes,
	}
	if v.Condition != nil {
		out.Health = toFindings(volume.ByController, []call.Condition{*v.Condition})
	}
	return out
}

func toFindings(by string, all []call.Condition) []api.Finding {
	out := make([]api.Finding, 0, len(all))
	for _, c := range all {
		out = append(out, api.Finding{By: by, Severity: c.Severity, Reason: c.Reason, Message: c.Message})
	}
	return out
}
