package apiserver

import "github.com/volagent/volagent/agent/api"

// warn adds a warning to the answer.
func (r *request) warn(warning string) {
	if warning != "" {
		r.w.Header().Add(api.WarningHeader, warning)
	}
}

// listAllVolumes lists the volumes of this host and the shared volumes of its cluster.
func listAllVolumes(s *Server, r *request) action {
	return func() (any, error) {
		all, warning := s.o.Cluster.Volumes(r.Context())
		r.warn(warning)
		return all, nil
	}
}

// getAnyVolume returns a volume of this host or a shared volume of its cluster.
func getAnyVolume(s *Server, r *request) action {
	return func() (any, error) {
		v, warning, err := s.o.Cluster.Volume(r.Context(), r.by, r.PathValue("id"))
		r.warn(warning)
		return v, err
	}
}

func listHosts(s *Server, r *request) action {
	return func() (any, error) { return s.o.Cluster.Hosts(r.Context()) }
}

func getHost(s *Server, r *request) action {
	return func() (any, error) { return s.o.Cluster.Host(r.Context(), r.PathValue("id")) }
}

func fenceHost(s *Server, r *request) action {
	req := body[api.FenceRequest](r)
	return func() (any, error) { return s.o.Cluster.Fence(r.Context(), r.by, r.PathValue("id"), req) }
}

func unfenceHost(s *Server, r *request) action {
	return func() (any, error) { return s.o.Cluster.Unfence(r.Context(), r.by, r.PathValue("id")) }
}

func testFence(s *Server, r *request) action {
	req := body[api.FenceTestRequest](r)
	return func() (any, error) { return s.o.Cluster.FenceTest(r.Context(), r.by, r.PathValue("id"), req) }
}

func replaceHost(s *Server, r *request) action {
	req := body[api.ReplaceRequest](r)
	return func() (any, error) { return s.o.Cluster.Replace(r.Context(), r.by, r.PathValue("id"), req) }
}

func moveVolume(s *Server, r *request) action {
	wait, req := r.duration("wait"), body[api.MoveRequest](r)
	return func() (any, error) { return s.o.Cluster.Move(r.Context(), r.by, r.PathValue("id"), req, wait) }
}
