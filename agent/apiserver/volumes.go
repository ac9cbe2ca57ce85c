package apiserver

import (
	"github.com/volagent/volagent/agent/api"
)

func listVolumes(s *Server, r *request) action {
	if r.flag("cluster") {
		return listAllVolumes(s, r)
	}
	return func() (any, error) { return s.o.Volumes.List(r.Context()), nil }
}

func getVolume(s *Server, r *request) action {
	if r.flag("cluster") {
		return getAnyVolume(s, r)
	}
	wait := r.duration("wait")
	return func() (any, error) { return s.o.Volumes.Get(r.Context(), r.by, r.PathValue("id"), r.text("for"), wait) }
}

func registerVolume(s *Server, r *request) action {
	dry, spec := r.flag("dry_run"), volumeSpec(r)
	return func() (any, error) { return s.o.Volumes.Register(r.Context(), r.by, spec, dry) }
}

func createVolume(s *Server, r *request) action {
	wait, dry, spec := r.duration("wait"), r.flag("dry_run"), volumeSpec(r)
	return func() (any, error) { return s.o.Volumes.Create(r.Context(), r.by, spec, dry, wait) }
}

// volumeSpec decodes a volume file. The file must name the same volume as the path.
func volumeSpec(r *request) api.VolumeSpec {
	spec := body[api.VolumeSpec](r)
	if id := r.PathValue("id"); spec.ID != id {
		r.fail(invalid("the path names volume %q, but the body names %q", id, spec.ID))
	}
	return spec
}

func listClasses(s *Server, _ *request) action {
	return func() (any, error) { return s.o.Classes.List(), nil }
}

func getClass(s *Server, r *request) action {
	return func() (any, error) { return s.o.Classes.Get(r.PathValue("id")) }
}

func deregisterVolume(s *Server, r *request) action {
	force, forget := r.flag("force"), r.flag("forget")
	return func() (any, error) {
		return s.o.Volumes.Deregister(r.Context(), r.by, r.PathValue("id"), force, forget)
	}
}

func deleteVolume(s *Server, r *request) action {
	return func() (any, error) {
		return s.o.Volumes.Delete(r.Context(), r.by, r.PathValue("id"), r.text("confirm"))
	}
}

func modifyVolume(s *Server, r *request) action {
	change := body[api.ModifyRequest](r)
	return func() (any, error) { return s.o.Volumes.Modify(r.Context(), r.by, r.PathValue("id"), change) }
}

func expandVolume(s *Server, r *request) action {
	wait, size := r.duration("wait"), body[api.ExpandRequest](r)
	return func() (any, error) { return s.o.Volumes.Expand(r.Context(), r.by, r.PathValue("id"), size, wait) }
}

func withdrawExpansion(s *Server, r *request) action {
	return func() (any, error) { return s.o.Volumes.WithdrawExpansion(r.Context(), r.by, r.PathValue("id")) }
}

func shareVolume(s *Server, r *request) action {
	force := r.flag("force")
	return func() (any, error) { return s.o.Volumes.Share(r.Context(), r.by, r.PathValue("id"), force) }
}

func unshareVolume(s *Server, r *request) action {
	return func() (any, error) { return s.o.Volumes.Unshare(r.Context(), r.by, r.PathValue("id")) }
}

func getStats(s *Server, r *request) action {
	return func() (any, error) { return s.o.Storage.Stats(r.Context(), r.by, r.PathValue("id")) }
}

func getReport(s *Server, r *request) action {
	within, storage := r.duration("within"), r.flag("storage")
	return func() (any, error) { return s.o.Storage.Report(r.Context(), r.by, r.PathValue("id"), within, storage) }
}

func listClaims(s *Server, r *request) action {
	return func() (any, error) { return s.o.Claims.List(r.text("volume"), r.text("plugin"), r.text("alloc")), nil }
}

func getClaim(s *Server, r *request) action {
	return func() (any, error) { return s.o.Claims.Get(r.PathValue("id"), r.PathValue("alloc")) }
}

func makeClaim(s *Server, r *request) action {
	wait, ask := r.duration("wait"), body[api.ClaimRequest](r)
	return func() (any, error) {
		return s.o.Claims.Claim(r.Context(), r.by, r.PathValue("id"), r.PathValue("alloc"), ask, wait)
	}
}

func detachClaim(s *Server, r *request) action {
	wait, force := r.duration("wait"), r.flag("force")
	return func() (any, error) {
		return s.o.Claims.Detach(r.Context(), r.by, r.PathValue("id"), r.PathValue("alloc"), force, r.text("without_plugin"), wait)
	}
}
