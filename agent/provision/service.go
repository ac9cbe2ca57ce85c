// Package provision registers, creates, deletes and deregisters volumes. None of these operations
// needs a mount on this host. The agent stores the intent to create or delete a volume before it
// calls the plugin. After a crash, the record therefore shows which storage may exist.
//
//	service.go     Service, which joins the parts
//	options.go     the dependencies
//	common.go      operations that several parts need
//	plugins.go     the plugin for an operation, on this host or on others
//	errors.go      errors of failed calls, and errors about missing volumes
//	register.go    Register, and changes by a volume file
//	create.go      Create
//	source.go      the snapshot or volume whose data a new volume gets
//	delete.go      Delete
//	deregister.go  Deregister and Forget
//	leftovers.go   leftovers and guards of a volume that the agent forgets
//	expand.go      Expand
//	modify.go      Modify
//	shared*.go     the same operations for volumes that the hosts of a cluster share
//	share.go       Share and Unshare
//	report.go      the usage and the problems of a volume
//	storage.go     the storage of a plugin as a whole
//	snapshot*.go   snapshots
package provision

// Service registers, creates, changes, snapshots and deletes volumes. Each embedded type provides
// the methods for one of these subjects.
type Service struct {
	registrar
	creator
	remover
	expander
	modifier
	snapshotter
	reporter
	storageReader
	sharer
}

// New returns a service with the given dependencies.
func New(o Options) *Service {
	c := newCommon(o)
	s := &Service{
		expander: expander{c}, modifier: modifier{c}, snapshotter: snapshotter{common: c},
		reporter: reporter{common: c}, storageReader: storageReader{c},
		sharer: sharer{c},
	}

	s.registrar = registrar{c, &s.modifier, &s.expander}
	s.creator = creator{c, &sourceFinder{c, &s.snapshotter}}
	s.remover = remover{c, &s.reporter.reports}
	return s
}
