package san

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Attachment is the connection of a volume to a node.
type Attachment struct {
	ID       string // volume, node and generation
	Volume   string
	Node     string
	Mode     string // CSI access mode, such as "SINGLE_NODE_WRITER"
	Writable bool
	Sessions int  // mounts of the attachment that the SAN serves
	CutOff   bool // the node is cut off, so all sessions answer EIO
}

// attachment is an Attachment of the SAN. Its operations hold the lock gate for reading. The fields
// readOnly and open change under both locks, gate and SAN.mu, so each of the two protects a reader.
type attachment struct {
	id, volume, node string
	mode             Mode
	made             bool // made by ControllerPublish, so ControllerUnpublish ends it

	gate     sync.RWMutex
	readOnly bool
	open     bool
}

func (a *attachment) writable() bool { return !a.readOnly }

func (a *attachment) holder() holder {
	return holder{node: a.node, mode: a.mode, writable: a.writable()}
}

// event returns an event about the attachment, which the call c caused. The call may be nil.
func (a *attachment) event(c *call) Event {
	e := Event{Kind: KindAttach, Node: a.node, Volume: a.volume, Attachment: a.id, Mode: a.mode.String(), Writable: a.writable()}
	if c != nil {
		e.Call, e.Method, e.Late = c.number, c.method, c.abandoned()
	}
	return e
}

// set changes an attachment when no operation is in its gate.
func (s *SAN) set(a *attachment, change func()) {
	a.gate.Lock()
	defer a.gate.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// wanted describes an attachment that a call requests.
type wanted struct {
	volume, node string
	mode         Mode
	readOnly     bool
	made         bool
}

// attach returns the attachment of a volume to a node, and makes it if it is missing. The caller
// holds the lock admin.
func (s *SAN) attach(w wanted, c *call) (*attachment, error) {
	w.readOnly = w.readOnly || readerOnly(w.mode)
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.disks[w.volume] == nil {
		return nil, status.Errorf(codes.NotFound, "volume %q does not exist", w.volume)
	}
	if a := s.find(w.volume, w.node); a != nil {
		// A driver without ControllerPublish may have made the attachment writable since.
		if a.mode != w.mode || (w.made && a.readOnly != w.readOnly) {
			return nil, status.Errorf(codes.AlreadyExists, "volume %q is attached to %q as %s", w.volume, w.node, a.mode)
		}
		return a, nil
	}
	if err := s.admit(w); err != nil {
		return nil, err
	}

	s.generation++
	a := &attachment{id: fmt.Sprintf("%s/%s/%d", w.volume, w.node, s.generation), volume: w.volume, node: w.node,
		mode: w.mode, made: w.made, readOnly: w.readOnly, open: !s.cut[w.node]}
	s.attachments[a.id] = a
	s.journal.add(a.event(c))
	s.judgeAttachment(a, c)

	return a, nil
}

// admit refuses attachments that break a rule, unless the SAN is permissive. The caller holds the
// lock mu.
func (s *SAN) admit(w wanted) error {
	if s.permissive {
		return nil
	}

	count := int64(0)
	for _, other := range s.attachments {
		if other.node == w.node {
			count++
		}
		if other.volume != w.volume {
			continue
		}
		if rule := conflict(holder{node: w.node, mode: w.mode, writable: !w.readOnly}, other.holder()); rule != "" {
			return status.Errorf(codes.FailedPrecondition, "volume %q is attached to %q as %s", w.volume, other.node, other.mode)
		}
	}
	if limit := s.nodes[w.node].Limit; limit > 0 && count >= limit {
		return status.Errorf(codes.ResourceExhausted, "node %q has a limit of %d volumes", w.node, limit)
	}

	return nil
}

// find returns the attachment of a volume to a node, or nil. The caller holds the lock mu.
func (s *SAN) find(volume, node string) *attachment {
	for _, a := range s.attachments {
		if a.volume == volume && a.node == node {
			return a
		}
	}
	return nil
}

// detach ends the attachments of a volume to a node, or to all nodes if node is empty. When it
// returns, no change of these nodes reaches the disk. The caller holds the lock admin.
func (s *SAN) detach(volume, node string, c *call) {
	for _, a := range s.attached(func(a *attachment) bool { return a.volume == volume && (node == "" || a.node == node) }) {
		s.set(a, func() {
			a.open = false
			delete(s.attachments, a.id)
			e := a.event(c)
			e.Kind = KindDetach
			s.journal.add(e)
		})
	}
}

// permitWrites makes the attachment of a driver without ControllerPublish writable. The caller holds
// the lock admin.
func (s *SAN) permitWrites(a *attachment) error {
	s.mu.Lock()
	err := error(nil)
	if !s.permissive {
		err = s.admitWriter(a)
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}

	s.set(a, func() {
		if !a.readOnly {
			return
		}

		a.readOnly = false
		s.journal.add(a.event(nil))
		s.judgeAttachment(a, nil)
	})

	return nil
}

func (s *SAN) admitWriter(a *attachment) error {
	for _, other := range s.attachments {
		if other.volume == a.volume && conflict(holder{node: a.node, mode: a.mode, writable: true}, other.holder()) != "" {
			return status.Errorf(codes.FailedPrecondition, "node %q may write to volume %q", other.node, a.volume)
		}
	}
	return nil
}

// CutOff cuts a node off from all data. When it returns, no change of the node reaches a disk, and
// all sessions of the node answer EIO. Attachments remain. Calls to the controller still work,
// because the storage has a separate management network.
func (s *SAN) CutOff(node string) { s.connect(node, false) }

// RestoreNode ends the effect of CutOff. The remaining attachments of the node work again.
func (s *SAN) RestoreNode(node string) { s.connect(node, true) }

func (s *SAN) connect(node string, open bool) {
	s.admin.Lock()
	defer s.admin.Unlock()

	kind := KindCut
	if open {
		kind = KindRestore
	}

	s.mu.Lock()
	s.cut[node] = !open
	s.journal.add(Event{Kind: kind, Node: node})
	s.mu.Unlock()

	for _, a := range s.attached(func(a *attachment) bool { return a.node == node }) {
		s.set(a, func() {
			changed := a.open != open
			a.open = open
			if open && changed {
				s.judgeAttachment(a, nil)
			}
		})
	}
}

// attached returns the attachments that keep selects, in the order in which they were made.
func (s *SAN) attached(keep func(*attachment) bool) []*attachment {
	s.mu.Lock()
	defer s.mu.Unlock()

	var all []*attachment
	for _, a := range s.attachments {
		if keep(a) {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *attachment) int { return cmp.Compare(a.id, b.id) })

	return all
}

// Attachments returns the attachments, sorted by volume and node.
func (s *SAN) Attachments() []Attachment {
	s.mu.Lock()
	defer s.mu.Unlock()

	var all []Attachment
	for _, a := range s.attachments {
		one := Attachment{ID: a.id, Volume: a.volume, Node: a.node, Mode: a.mode.String(), Writable: a.writable(), CutOff: !a.open}
		for session := range s.sessions {
			if session.attachment == a {
				one.Sessions++
			}
		}

		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Attachment) int { return cmp.Compare(a.ID, b.ID) })

	return all
}
