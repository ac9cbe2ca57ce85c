// Package service answers the requests of the API's clients, without a transport. Each noun of the
// API has a type with a method for each request. A method first checks the permission of the
// Caller, then converts the request to the domain, calls the domain, and converts the answer to the
// API. A method without a Caller answers every process that can open the socket.
//
//	service.go    the dependencies, and New
//	caller.go     the rights of a caller
//	view.go       reads records for all nouns, and adds the lines of a plugin's log
//	describe.go, claim.go, report.go, snapshot.go, spec.go, errors.go
//	              convert between the API and the domain
//
// The other files contain one noun each. The methods return errors of the type *api.Error. As an
// exception, Events.Read returns an error from its function argument each unchanged.
package service

import (
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// Options are the dependencies of a Service.
type Options struct {
	Claims    Claimer
	Volumes   Provisioner
	Storage   StorageCalls
	Snapshots Snapshotter
	Records   Records
	Queue     Queue
	Plugins   PluginSet
	Tests     Tester
	Classes   ClassFiles
	Drainer   Drainer
	State     Backups
	Owners    volume.Owners
	Events    EventLog
	Doctor    Examiner
	Overview  Overview        // nil without a cluster
	Mover     Mover           // nil without a cluster
	Self      string          // the name of this host
	Node      func() api.Node // the service adds the plugins, counts and problems
}

// Service has a field for each noun of the API.
type Service struct {
	Claims    Claims
	Volumes   Volumes
	Storage   Storage
	Snapshots Snapshots
	Plugins   Plugins
	Classes   Classes
	Tests     Tests
	Node      Node
	Cluster   Cluster
	State     State
	Events    Events
	Doctor    Doctor
}

// New returns a service.
func New(o Options) *Service {
	v := view{records: o.Records, queue: o.Queue, plugins: o.Plugins, reports: o.Storage, owners: o.Owners}
	return &Service{
		Claims:    Claims{v, o.Claims},
		Volumes:   Volumes{v, o.Volumes, o.Classes},
		Storage:   Storage{v, o.Storage},
		Snapshots: Snapshots{v, o.Snapshots},
		Plugins:   Plugins{v, o.Plugins},
		Classes:   Classes{v, o.Classes},
		Tests:     Tests{Plugins{v, o.Plugins}, o.Tests},
		Node:      Node{v, o.Node, o.Drainer, o.Plugins},
		Cluster:   Cluster{v, o.Overview, o.Mover, o.Self},
		State:     State{o.State},
		Events:    Events{o.Events},
		Doctor:    Doctor{o.Doctor},
	}
}
