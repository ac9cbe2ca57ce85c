// Package status describes the agent and its host for people, for the API and for the metrics. It
// collects the problems that the agent knows without a check of the host.
//
//	status.go    the node as a whole
//	problems.go  the problems of the node, each with a command that helps
//	strays.go    mounts that belong to no record
//	metrics.go   the same facts as numbers
//	service.go   Service and its dependencies
package status

import (
	"fmt"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/inspect"
	"github.com/volagent/volagent/statedb"
)

// Line returns the status line for systemctl status.
func (s *Service) Line() string {
	if s.Halt != "" {
		return "halted: " + s.Halt
	}
	return fmt.Sprintf("%d volumes", len(s.Records.Volumes()))
}

// Node returns the description of the node for the API. It omits the numbers that agent/service
// adds.
func (s *Service) Node() api.Node {
	n := api.Node{ID: s.NodeID, Version: api.Version, StartedAt: s.Started, DataDir: s.DataDir, State: api.OK, DB: api.OK, Draining: s.Records.Draining()}
	if s.Halt != "" {
		n.State = s.Halt
	}
	if p, ok := s.fault(); ok {
		n.DB = s.Records.Fault().Error()
		n.Problems = append(n.Problems, p)
	}

	if p, ok := s.lost(); ok {
		if n.DB == api.OK {
			n.DB = "made anew"
		}
		n.Problems = append(n.Problems, p)
	}

	n.Problems = append(n.Problems, s.full()...)
	n.Problems = append(n.Problems, s.Unscraped()...)
	n.Problems = append(n.Problems, s.Files.Problems()...)
	n.Problems = append(n.Problems, s.Classes.Problems()...)
	n.Problems = append(n.Problems, s.leftovers()...)
	n.Problems = append(n.Problems, s.cutTests()...)
	n.Problems = append(n.Problems, s.Plugins.Deadlocks()...)
	n.Cluster = s.Cluster()
	n.Pending = inspect.Pending(s.Records.Volumes(), statedb.Snapshots.All(s.Records))
	return n
}
