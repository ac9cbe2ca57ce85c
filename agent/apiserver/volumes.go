package apiserver

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// lookWithin is the time limit for the check of a volume's mounts in its status. A hanging mount
// must not make the status hang.
const lookWithin = 500 * time.Millisecond

// These limits apply to a list of volumes: the time for each volume, and the number of volumes that
// the server checks in parallel. Even with a hundred hanging mounts, the list takes less than a
// second.
const (
	listWithin  = 250 * time.Millisecond
	looksAtOnce = 48
)

// describe returns the status of one volume. It adds the last lines of the plugin's log if the
// plugin may be the cause of a problem.
func (s *Server) describe(ctx context.Context, r volume.Record) api.Volume {
	v, failed := s.look(ctx, r, lookWithin)
	if failed && v.Attempt != nil && s.mayReadLogs(ctx) {
		v.Attempt.PluginLog = s.logOf(r.Volume.PluginID, statusLines, r.Volume.ID)
	}
	return v
}

// look returns the status of a volume, within a time limit. It also reports whether the plugin may
// be the cause of the volume's problem.
func (s *Server) look(ctx context.Context, r volume.Record, within time.Duration) (v api.Volume, failed bool) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()

	begun := time.Now()
	obs, at := s.o.Queue.Look(ctx, r)
	v = toVolume(r, obs, at, s.o.Volumes.LastReport(r), s.o.Owners)
	if v.State == api.StateMounted {
		v.AnswersMS = float64(time.Since(begun).Microseconds()) / 1000
	}
	called := at != nil && at.Err != nil && at.Err.Code != volume.CodeHost
	return v, called || at != nil && at.Action.Cause == volume.CausePlugin
}

// describeAll returns the status of all volumes, sorted by id.
func (s *Server) describeAll(ctx context.Context) []api.Volume {
	rs := sorted(s.o.Records.Volumes())
	out := make([]api.Volume, len(rs))
	var wg sync.WaitGroup
	slots := make(chan struct{}, looksAtOnce)

	for i, r := range rs {
		slots <- struct{}{}
		wg.Go(func() {
			out[i], _ = s.look(ctx, r, listWithin)
			<-slots
		})
	}

	wg.Wait()
	return out
}

func listVolumes(s *Server, w http.ResponseWriter, r *http.Request) error {
	return s.answer(w, s.describeAll(r.Context()))
}

// record returns the record of the volume that a path names.
func (s *Server) record(r *http.Request) (volume.Record, error) {
	id := r.PathValue("id")
	if err := volume.CheckID("volume id", id); err != nil {
		return volume.Record{}, err
	}

	rec, ok := s.o.Records.Volume(id)
	if !ok {
		return rec, volume.Errorf(volume.ErrNotFound, "no volume %q", id).WithHint("volctl volume list")
	}
	return rec, nil
}

func getVolume(s *Server, w http.ResponseWriter, r *http.Request) error {
	q, err := waitFor(r, "mounted", "free")
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(r.Context(), q.wait)
	defer cancel()

	for {
		if _, err := s.record(r); err != nil {
			return err
		}

		changed := s.o.Queue.Changed(r.PathValue("id"))
		rec, err := s.record(r)
		if err != nil {
			return err
		}

		v := s.describe(r.Context(), rec)
		if q.state == "" || v.State == q.state {
			return s.answer(w, v)
		}

		select {
		case <-changed:
		case <-ctx.Done():
			if rec, err := s.record(r); err == nil {
				v = s.describe(r.Context(), rec) // the state may have changed since
			}
			return volume.Errorf(volume.ErrTimeout, "volume %q is %s, not %s", rec.Volume.ID, v.Summary, q.state).
				WithRemedy(remedy.Of(remedy.ShowVolume, rec.Volume.ID))
		}
	}
}

// waiting contains the parameters "for" and "wait" of a query.
type waiting struct {
	state string
	wait  time.Duration
}

func waitFor(r *http.Request, states ...string) (waiting, error) {
	w := waiting{state: r.URL.Query().Get("for")}
	d, err := duration(r, "wait")
	if err != nil || w.state == "" {
		return w, err
	}

	for _, s := range states {
		if s == w.state {
			w.wait = d
			return w, nil
		}
	}

	return w, volume.Errorf(volume.ErrInvalid, "cannot wait for %q; one of %v", w.state, states)
}

// duration reads a duration from the query. It returns 0 if the query does not contain it.
func duration(r *http.Request, name string) (time.Duration, error) {
	raw := r.URL.Query().Get(name)
	if raw == "" {
		return 0, nil
	}

	d, err := time.ParseDuration(raw)
	if err != nil || d < 0 {
		return 0, volume.Errorf(volume.ErrInvalid, "%s=%q is not a duration such as 30s", name, raw)
	}
	return d, nil
}

// flag reads a boolean from the query. It returns false if the query does not contain it.
func flag(r *http.Request, name string) (bool, error) {
	raw := r.URL.Query().Get(name)
	if raw == "" {
		return false, nil
	}

	b, err := strconv.ParseBool(raw)
	if err != nil {
		return false, volume.Errorf(volume.ErrInvalid, "%s=%q is neither true nor false", name, raw)
	}
	return b, nil
}

func registerVolume(s *Server, w http.ResponseWriter, r *http.Request) error {
	return s.apply(w, r, s.o.Volumes.Register)
}

func createVolume(s *Server, w http.ResponseWriter, r *http.Request) error {
	wait, err := duration(r, "wait")
	if err != nil {
		return err
	}
	return s.apply(w, r, func(ctx context.Context, v volume.Volume, dry bool) (volume.Record, volume.Change, error) {
		return s.o.Volumes.CreateWithin(ctx, v, dry, wait)
	})
}

// apply decodes a volume file and calls do, which registers or creates the volume.
func (s *Server) apply(w http.ResponseWriter, r *http.Request, do func(context.Context, volume.Volume, bool) (volume.Record, volume.Change, error)) error {
	dry, err := flag(r, "dry_run")
	if err != nil {
		return err
	}

	var spec api.VolumeSpec
	if err := body(w, r, &spec); err != nil {
		return err
	}
	if id := r.PathValue("id"); spec.ID != id {
		return volume.Errorf(volume.ErrInvalid, "the path names volume %q, but the body names %q", id, spec.ID)
	}

	rec, change, err := do(r.Context(), fromSpec(spec), dry)
	if err != nil {
		return s.withLog(err, spec.PluginID, spec.ID)
	}
	return s.answer(w, api.VolumeResult{Outcome: change.Outcome, Changes: change.Fields, Volume: s.describe(r.Context(), rec)})
}

func deregisterVolume(s *Server, w http.ResponseWriter, r *http.Request) error {
	force, err := flag(r, "force")
	if err != nil {
		return err
	}

	forget, err := flag(r, "forget")
	if err != nil {
		return err
	}
	if forget && !force {
		return volume.Errorf(volume.ErrInvalid, "forget=true needs force=true")
	}

	var left []string
	if id := r.PathValue("id"); forget {
		left, err = s.o.Volumes.Forget(r.Context(), id)
	} else {
		left, err = s.o.Volumes.Deregister(r.Context(), id, force)
	}

	if err != nil {
		return err
	}
	return s.answer(w, api.DeregisterResult{Left: left})
}

func deleteVolume(s *Server, w http.ResponseWriter, r *http.Request) error {
	pluginID := s.pluginOf(r.PathValue("id"))
	if err := s.o.Volumes.Delete(r.Context(), r.PathValue("id"), r.URL.Query().Get("confirm")); err != nil {
		return s.withLog(err, pluginID, r.PathValue("id"))
	}
	return s.answer(w, api.Done{})
}
