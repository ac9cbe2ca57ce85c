package apiserver

import (
	"net/http"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/peer"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

func getClaim(s *Server, w http.ResponseWriter, r *http.Request) error {
	rec, err := s.record(r)
	if err != nil {
		return err
	}

	alloc := r.PathValue("alloc")
	c, ok := rec.Claims[alloc]
	if !ok {
		return volume.Errorf(volume.ErrNotFound, "%q has no claim on volume %q", alloc, rec.Volume.ID).
			WithRemedy(remedy.Of(remedy.ShowVolume, rec.Volume.ID))
	}
	return s.answer(w, s.toClaim(rec, c))
}

// toClaim describes a claim and the state of its plugin. It does not check the mounts of the
// volume.
func (s *Server) toClaim(rec volume.Record, c volume.Claim) api.Claim {
	return toClaim(rec, c, s.o.Plugins.View(rec.Volume.PluginID), s.o.Owners)
}

func makeClaim(s *Server, w http.ResponseWriter, r *http.Request) error {
	wait, err := duration(r, "wait")
	if err != nil {
		return err
	}

	var req api.ClaimRequest
	if err := body(w, r, &req); err != nil {
		return err
	}

	terms, err := fromClaimRequest(req, peer.Of(r.Context()))
	if err != nil {
		return err
	}

	fd, err := atFD(req.AtFD, peer.Of(r.Context()))
	if err != nil {
		return err
	}

	rec, c, err := s.o.Claims.Claim(r.Context(), r.PathValue("id"), volume.Request{
		Alloc: r.PathValue("alloc"), Terms: terms, MountFlags: req.MountFlags, AtFD: fd,
	}, wait)
	if err != nil {
		return s.withLog(err, s.pluginOf(r.PathValue("id")), r.PathValue("id"))
	}
	return s.answer(w, s.toClaim(rec, c))
}

// atFD returns the descriptor that the caller lends to the agent, or nil if there is none. Only
// root may lend one, because the agent mounts on the directory of the descriptor.
func atFD(fd *int, p peer.Peer) (*volume.Descriptor, error) {
	switch {
	case fd == nil || *fd == -1:
		return nil, nil
	case *fd < 0:
		return nil, volume.Errorf(volume.ErrInvalid, "at_fd is %d, which is not a descriptor", *fd)
	case !p.Known || p.UID != 0:
		return nil, &api.Error{
			Code: api.CodePermission, Message: p.String() + " may not lend the agent a descriptor (at_fd): only root may",
			Hint: "omit at_fd: the agent opens the directory itself",
		}
	}

	return &volume.Descriptor{PID: p.PID, FD: *fd}, nil
}

func detachClaim(s *Server, w http.ResponseWriter, r *http.Request) error {
	wait, err := duration(r, "wait")
	if err != nil {
		return err
	}

	force, err := flag(r, "force")
	if err != nil {
		return err
	}

	id, alloc := r.PathValue("id"), r.PathValue("alloc")
	if how := r.URL.Query().Get("without_plugin"); how != "" {
		left, err := s.o.Claims.DetachWithout(r.Context(), id, alloc, force, volume.Without(how), wait)
		if err != nil {
			return err
		}
		return s.answer(w, api.Done{Left: left})
	}
	if err := s.o.Claims.Detach(r.Context(), id, alloc, force, wait); err != nil {
		return s.withLog(err, s.pluginOf(id), id)
	}
	return s.answer(w, api.Done{})
}

func listClaims(s *Server, w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	fits := func(name, v string) bool { return q.Get(name) == "" || q.Get(name) == v }
	out := []api.Claim{}

	for _, rec := range sorted(s.o.Records.Volumes()) {
		for _, c := range rec.Ordered() {
			if fits("volume", rec.Volume.ID) && fits("plugin", rec.Volume.PluginID) && fits("alloc", c.Alloc) {
				out = append(out, s.toClaim(rec, c))
			}
		}
	}

	return s.answer(w, out)
}
