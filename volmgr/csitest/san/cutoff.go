package san

// SetPermissive makes the SAN accept attachments that exclude each other, and more attachments than
// the limit of a node. A test can then see the violations of a cluster. Otherwise the SAN refuses
// them, as real storage does.
func (s *fabric) SetPermissive(permissive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.permissive = permissive
}

// LieAboutDetach makes the next ControllerUnpublishVolume for a node answer OK without an effect. The
// attachment remains, and the node can still write. A driver that answers before the storage has acted
// behaves like this.
func (s *fabric) LieAboutDetach(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lies[node]++
}

// lie reports whether the present detach of a node has no effect.
func (s *fabric) lie(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lies[node] == 0 {
		return false
	}
	s.lies[node]--
	return true
}

// CutOff cuts a node off from all data. When it returns, no change of the node reaches a disk, and
// all sessions of the node answer EIO. Attachments remain. Calls to the controller still work,
// because the storage has a separate management network.
func (s *fabric) CutOff(node string) { s.connect(node, false) }

// RestoreNode ends the effect of CutOff. The remaining attachments of the node work again.
func (s *fabric) RestoreNode(node string) { s.connect(node, true) }

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
