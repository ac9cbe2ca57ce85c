package apiserver

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

func createSnapshot(s *Server, w http.ResponseWriter, r *http.Request) error {
	var q api.SnapshotRequest
	made, err := s.take(w, r, &q, func() (volume.SnapshotAsk, map[string]api.Secret) {
		return volume.SnapshotAsk{Volumes: []string{q.Volume}, Name: q.Name, Parameters: q.Parameters}, q.Secrets
	})
	if err != nil {
		return err
	}
	return s.answer(w, toMade(made, s.idsHere()))
}

func createGroupSnapshot(s *Server, w http.ResponseWriter, r *http.Request) error {
	var q api.GroupSnapshotRequest
	made, err := s.take(w, r, &q, func() (volume.SnapshotAsk, map[string]api.Secret) {
		return volume.SnapshotAsk{Volumes: q.Volumes, Group: true, Name: q.Name, Parameters: q.Parameters}, q.Secrets
	})
	if err != nil {
		return err
	}
	return s.answer(w, toMadeGroup(made, s.idsHere()))
}

// take decodes a request for a snapshot or a group into q, and makes the snapshot. It calls ask
// after q is decoded. ask converts q and returns its secrets.
func (s *Server) take(w http.ResponseWriter, r *http.Request, q any, ask func() (volume.SnapshotAsk, map[string]api.Secret)) (volume.MadeSnapshot, error) {
	wait, err := duration(r, "wait")
	if err == nil {
		err = body(w, r, q)
	}
	if err != nil {
		return volume.MadeSnapshot{}, err
	}

	a, secrets := ask()
	if a.Secrets, err = references(secrets); err != nil {
		return volume.MadeSnapshot{}, err
	}

	made, err := s.o.Snapshots.Snapshot(r.Context(), a, wait)
	if err != nil {
		return made, s.withLog(err, s.pluginOf(strings.Join(a.Volumes[:min(1, len(a.Volumes))], "")), a.Volumes...)
	}
	return made, nil
}

func listSnapshots(s *Server, w http.ResponseWriter, r *http.Request) error {
	ask := volume.SnapshotsAsk{PluginID: r.URL.Query().Get("plugin"), VolumeID: r.URL.Query().Get("volume")}
	var err error
	if ask.Secrets, err = s.secrets(r); err != nil {
		return err
	}
	if ask.Pending, err = flag(r, "pending"); err != nil {
		return err
	}

	got, err := s.o.Snapshots.Snapshots(r.Context(), ask)
	if err != nil {
		if ask.PluginID == "" {
			ask.PluginID = s.pluginOf(ask.VolumeID)
		}
		return s.withLog(err, ask.PluginID)
	}

	known := s.idsHere()
	out := api.Snapshots{Snapshots: []api.Snapshot{}, Groups: []api.GroupSnapshot{}, Notes: got.Notes}
	for _, one := range got.Listed {
		out.Snapshots = append(out.Snapshots, toSnapshot(one, known))
	}

	for _, p := range got.Pending {
		if p.Group {
			out.Groups = append(out.Groups, toPendingGroup(p))
		} else {
			out.Snapshots = append(out.Snapshots, toPending(p))
		}
	}

	return s.answer(w, out)
}

func deleteSnapshot(s *Server, w http.ResponseWriter, r *http.Request) error {
	forget, err := flag(r, "forget")
	if err != nil {
		return err
	}

	at, wait, err := snapshotAt(w, r)
	if err != nil {
		return err
	}
	if forget {
		left, err := s.o.Snapshots.ForgetSnapshot(r.Context(), at)
		if err != nil {
			return err
		}
		return s.answer(w, api.Done{Left: left})
	}

	return s.destroy(w, r, at, wait)
}

func deleteGroupSnapshot(s *Server, w http.ResponseWriter, r *http.Request) error {
	at, wait, err := snapshotAt(w, r)
	if err != nil {
		return err
	}
	at.Group = true
	return s.destroy(w, r, at, wait)
}

func (s *Server) destroy(w http.ResponseWriter, r *http.Request, at volume.SnapshotAt, wait time.Duration) error {
	if err := s.o.Snapshots.DeleteSnapshot(r.Context(), at, wait); err != nil {
		return s.withLog(err, at.PluginID)
	}
	return s.answer(w, api.Done{})
}

// snapshotAt decodes a request to delete a snapshot.
func snapshotAt(w http.ResponseWriter, r *http.Request) (at volume.SnapshotAt, wait time.Duration, err error) {
	var q api.SnapshotRef
	if wait, err = duration(r, "wait"); err == nil {
		err = body(w, r, &q)
	}
	at = volume.SnapshotAt{PluginID: r.PathValue("plugin"), ID: r.PathValue("id"), Members: q.Snapshots}
	if err == nil {
		at.Secrets, err = references(q.Secrets)
	}
	return at, wait, err
}

func getGroupSnapshot(s *Server, w http.ResponseWriter, r *http.Request) error {
	at := volume.SnapshotAt{PluginID: r.PathValue("plugin"), ID: r.PathValue("id"), Group: true, Members: r.URL.Query()["snapshot"]}
	var err error
	if at.Secrets, err = s.secrets(r); err != nil {
		return err
	}

	got, err := s.o.Snapshots.GroupSnapshot(r.Context(), at)
	if err != nil {
		return s.withLog(err, at.PluginID)
	}

	made := volume.MadeSnapshot{GroupSnapshot: got, Intent: volume.SnapshotIntent{
		PluginID: at.PluginID, Driver: s.o.Plugins.View(at.PluginID).Info.Driver}}
	return s.answer(w, toMadeGroup(made, s.idsHere()))
}

// secrets reads references to secrets from a query. Only callers with write permission may use
// them, because the agent reads the files and variables that the references name.
func (s *Server) secrets(r *http.Request) (map[string]call.SecretRef, error) {
	raw := r.URL.Query().Get("secrets")
	if raw == "" {
		return nil, nil
	}
	if p := peer.Of(r.Context()); !s.o.MayWrite(p) {
		return nil, &api.Error{Code: api.CodePermission, Message: p.String() + " may not name secrets for the agent to read"}
	}

	refs := map[string]api.Secret{}
	if err := json.Unmarshal([]byte(raw), &refs); err != nil {
		return nil, volume.Errorf(volume.ErrInvalid, "cannot read the secrets of the request")
	}
	return references(refs)
}

// references converts secrets that belong to no registered volume. The agent stores no secrets for
// them, so references rejects sealed and literal values.
func references(all map[string]api.Secret) (map[string]call.SecretRef, error) {
	refs := map[string]call.SecretRef{}
	for name, one := range all {
		ref := fromSecret(one)
		if ref.File == "" && ref.Credential == "" && ref.Env == "" {
			return nil, volume.Errorf(volume.ErrInvalid, "secret %q is not a reference: use {file: PATH}, {credential: NAME} or {env: NAME}", name)
		}

		refs[name] = call.SecretRef{File: ref.File, Credential: ref.Credential, Env: ref.Env}
	}

	return refs, nil
}

// storage identifies a volume by its driver and its external id.
type storage struct{ driver, external string }

// idsHere maps the volumes of all drivers to the ids under which they are registered here.
func (s *Server) idsHere() map[storage]string {
	known := map[storage]string{}
	for _, r := range s.o.Records.Volumes() {
		known[storage{r.Volume.Driver, r.Volume.ExternalID}] = r.Volume.ID
	}
	return known
}

func toSnapshot(one volume.ListedSnapshot, known map[storage]string) api.Snapshot {
	return api.Snapshot{
		ID: one.ID, Name: one.Name, PluginID: one.PluginID, Volume: known[storage{one.Driver, one.SourceID}], SourceID: one.SourceID,
		GroupID: one.GroupID, State: stateOf(one.ID, one.Ready), Size: one.Size, CreatedAt: one.Created,
	}
}

func stateOf(id string, ready bool) string {
	switch {
	case ready:
		return api.SnapshotReady
	case id == "":
		return api.SnapshotUnknown
	default:
		return api.SnapshotCreating
	}
}

// toMade describes a snapshot that the agent has just requested. The plugin may not have answered
// yet.
func toMade(m volume.MadeSnapshot, known map[storage]string) api.Snapshot {
	in := m.Intent
	if len(m.Snapshots) == 0 {
		return toPending(volume.PendingSnapshot{SnapshotIntent: in})
	}
	one := toSnapshot(volume.ListedSnapshot{PluginID: in.PluginID, Driver: in.Driver, Name: in.Name, Snapshot: m.Snapshots[0]}, known)
	one.Volume = in.Volumes[0]
	return one
}

func toMadeGroup(m volume.MadeSnapshot, known map[storage]string) api.GroupSnapshot {
	in := m.Intent
	g := api.GroupSnapshot{
		ID: m.ID, Name: in.Name, PluginID: in.PluginID, State: stateOf(m.ID, m.Ready), CreatedAt: m.Created, Snapshots: []api.Snapshot{}, Volumes: in.Volumes,
	}
	for _, one := range m.Snapshots {
		g.Snapshots = append(g.Snapshots, toSnapshot(volume.ListedSnapshot{PluginID: in.PluginID, Driver: in.Driver, Snapshot: one}, known))
	}
	return g
}

func toPending(p volume.PendingSnapshot) api.Snapshot {
	return api.Snapshot{
		ID: p.ID, Name: p.Name, PluginID: p.PluginID, Volume: p.Volumes[0], SourceID: p.Sources[0], State: stateOf(p.ID, false),
		CreatedAt: p.Since, Message: p.Doing,
	}
}

func toPendingGroup(p volume.PendingSnapshot) api.GroupSnapshot {
	return api.GroupSnapshot{
		ID: p.ID, Name: p.Name, PluginID: p.PluginID, State: stateOf(p.ID, false), CreatedAt: p.Since, Snapshots: []api.Snapshot{},
		Volumes: p.Volumes, Message: p.Doing,
	}
}
