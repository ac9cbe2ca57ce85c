// Package status describes the agent and its host: to people, to the API and to the metrics. It
// gathers the problems that the agent knows without looking at the host.
//
//	status.go    the node as a whole
//	problems.go  its problems, each with the command that helps
//	strays.go    what is mounted without a record
//	metrics.go   the same facts as numbers
package status

import (
	"fmt"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/inspect"
	"github.com/volagent/volagent/agent/metrics"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Queue tells how the last step of a volume went.
type Queue interface {
	Last(r volume.Record) *volume.Attempt
}

// Tests tells whether a test of a plugin is running.
type Tests interface{ Testing(pluginID string) bool }

// Files reports problems with volume files.
type Files interface{ Problems() []api.Problem }

// Reports returns the last report of a plugin about a volume.
type Reports interface {
	LastReport(r volume.Record) volume.Report
}

// Host reads the mount table.
type Host interface {
	Under(path string) ([]mount.Entry, error)
}

// Service describes the agent and its host.
type Service struct {
	NodeID, DataDir string
	MetricsAddress  string // configured; empty for none
	Halt            string // why no call is sent to any plugin; empty in normal operation
	Started         time.Time

	Records records.Store
	Plugins plugins.Set
	Queue   Queue
	Tests   Tests
	Files   Files
	Volumes Reports
	Host    Host
	Scraped *metrics.Server // nil without a metrics address
}

// Line returns the status line for systemctl status.
func (s *Service) Line() string {
	if s.Halt != "" {
		return "halted: " + s.Halt
	}
	return fmt.Sprintf("%d volumes", len(s.Records.Volumes()))
}

// Node returns the node for the API, without the counts that the API server makes itself.
func (s *Service) Node() api.Node {
	n := api.Node{ID: s.NodeID, Version: api.Version, StartedAt: s.Started, DataDir: s.DataDir, State: "ok", DB: "ok", Draining: s.Records.Draining()}
	if s.Halt != "" {
		n.State = s.Halt
	}
	if p, ok := s.fault(); ok {
		n.DB = s.Records.Fault().Error()
		n.Problems = append(n.Problems, p)
	}

	if p, ok := s.lost(); ok {
		if n.DB == "ok" {
			n.DB = "made anew"
		}
		n.Problems = append(n.Problems, p)
	}

	n.Problems = append(n.Problems, s.full()...)
	n.Problems = append(n.Problems, s.Unscraped()...)
	n.Problems = append(n.Problems, s.Files.Problems()...)
	n.Problems = append(n.Problems, s.leftovers()...)
	n.Problems = append(n.Problems, s.cutTests()...)
	n.Problems = append(n.Problems, s.Plugins.Deadlocks()...)
	n.Pending = inspect.Pending(s.Records.Volumes(), s.Records.Snapshots())
	return n
}
