package status

import (
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/metrics"
	"github.com/volagent/volagent/agent/plugins"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// Queue returns the result of a volume's last step.
type Queue interface {
	Last(r volume.Record) *volume.Attempt
}

// Tests reports whether a test of a plugin is running.
type Tests interface{ Testing(pluginID string) bool }

// Files reports problems with volume files, or with class files.
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
	MetricsAddress  string // the configured address; empty if there is none
	Halt            string // the reason why the agent sends no calls to plugins; empty in normal operation
	Started         time.Time

	Records records.Store
	Plugins plugins.Set
	Queue   Queue
	Tests   Tests
	Files   Files
	Classes Files
	Volumes Reports
	Host    Host
	Cluster func() *api.NodeCluster // returns nil without a cluster
	Scraped *metrics.Server         // nil without a metrics address
}
