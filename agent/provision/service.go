// Package provision registers, creates, deletes and deregisters volumes. None of these operations
// needs a mount on this host. The agent stores the intent to create or delete a volume before it
// calls the plugin. After a crash, the record therefore shows which storage may exist.
package provision

// Service registers, creates, changes, snapshots and deletes volumes. Its embedded parts have the
// methods, each for one of these subjects.
type Service struct {
	registrar
	creator
	remover
	expander
	modifier
	snapshotter
	reporter
	storageReader
}

// New returns a service with the given dependencies.
func New(o Options) *Service {
	c := &common{o}
	s := &Service{
		expander: expander{c}, modifier: modifier{c}, snapshotter: snapshotter{common: c},
		reporter: reporter{common: c}, storageReader: storageReader{c},
	}

	s.registrar = registrar{c, &s.modifier, &s.expander}
	s.creator = creator{c, &sourceFinder{c, &s.snapshotter}}
	s.remover = remover{c, &s.reporter.reports}
	return s
}
