package san

import "time"

// SetPermissive makes the SAN accept attachments that exclude each other, and more attachments than
// the limit of a node. A test can then see the violations of a cluster. Otherwise the SAN refuses
// them, as real storage does.
func (s *fabric) SetPermissive(permissive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permissive = permissive
}

// CutOff cuts a node off from all data. When it returns, no change of the node reaches a disk, and
// all sessions of the node answer EIO. Attachments remain. Calls to the controller still work,
// because the storage has a separate management network.
func (s *fabric) CutOff(node string) { s.connect(node, false) }

// RestoreNode ends the effect of CutOff. The remaining attachments of the node work again.
func (s *fabric) RestoreNode(node string) { s.connect(node, true) }

// SlowData makes each operation of a node on its mounts take longer, until the test calls the returned
// function.
func (s *fabric) SlowData(node string, by time.Duration) (stop func()) {
	set := func(by time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.slow[node] = by
	}
	set(by)
	return func() { set(0) }
}

// dawdle waits as long as each operation of a node takes longer, or until the SAN ends.
func (s *fabric) dawdle(node string) {
	s.mu.Lock()
	by := s.slow[node]
	s.mu.Unlock()
	if by == 0 {
		return
	}
	timer := time.NewTimer(by)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ended:
	}
}

// alwaysLies is the number in fabric.lies of a node whose detaches have no effect until a test says so.
const alwaysLies = -1

// LieAboutDetach makes ControllerUnpublishVolume for a node succeed without an effect, until the test
// calls the returned function. The attachment remains, and the node can still write. Some drivers only
// remove an entry from a list, or answer before the storage has acted.
func (s *fabric) LieAboutDetach(node string) (stop func()) {
	set := func(lies int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lies[node] = lies
	}
	set(alwaysLies)
	return func() { set(0) }
}

// LieAboutNextDetach is LieAboutDetach for the next ControllerUnpublishVolume only.
func (s *fabric) LieAboutNextDetach(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lies[node] = 1
}

// lie reports whether the present detach of a node has no effect.
func (s *fabric) lie(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lies[node] > 0 {
		s.lies[node]--
		return true
	}
	return s.lies[node] == alwaysLies
}

func (s *fabric) connect(node string, open bool) {
	s.admin.Lock()
	defer s.admin.Unlock()

	kind := KindCut
	if open {
		kind = KindRestore
	}

	s.mu.Lock()
	s.cut[node] = !open
	s.add(Event{Kind: kind, Node: node})
	s.mu.Unlock()

	for _, a := range s.attached(func(a *attachment) bool { return a.node == node }) {
		s.set(a, func() {
			changed := a.open != open
			a.open = open
			if open && changed {
				s.judgeAttachment(a, cause{})
			}
		})
	}
}
