// Package facts collects data about the host. The doctor applies its rules to this data.
//
//	facts.go     NewDoctor
//	memory.go    facts that the agent has in memory
//	database.go  the file of the state database
//	host.go      mounts and devices
//	notes.go     the notes beside the mounts
//	runtimes.go  docker and podman
//	cluster.go   holds, calls and conflicts in the cluster
//	system.go    systemd, mount namespaces, and the helpers of mount(8)
package facts

import (
	"os"
	"time"

	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/agent/records"
)

// NewDoctor returns a doctor for this host with the given sources of facts.
func NewDoctor(o Options) *doctor.Doctor {
	c := &collector{o}
	db := &database{file: o.StateFile, db: o.DB.DB}
	return doctor.New(doctor.Options{
		Root: o.Root, Records: records.Living{Store: o.DB, Owners: o.Owners}, Queue: o.Queue, Owners: o.Owners, Halt: o.Halt, OtherDataDir: o.OtherDataDir, Now: time.Now,
		Host: hostFacts{o.Host, o.Dirs.Manager}, Notes: noteFacts{o.DB, o.Dirs.Manager, o.DB.Notes}, Guards: o.Dirs,
		Database: db.look, Deregistered: c.leftovers, Tests: c.tests, Plugins: c.plugins, System: c.system, Unmet: c.unmet, Runtimes: c.runtimes,
		Cluster: c.cluster, CompareHolds: c.compare,
		Fstab: func() ([]fstab.Entry, error) { return fstab.Read(fstab.System(os.Getenv)) },
	})
}
