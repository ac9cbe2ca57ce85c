package san

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// set changes an attachment when no operation is in its gate.
func (s *fabric) set(a *attachment, change func()) {
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
func (s *fabric) attach(w wanted, c cause) (*attachment, error) {
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
	s.add(a.event(c))
	s.judgeAttachment(a, c)

	return a, nil
}

// admit refuses attachments that break a rule, unless the SAN is permissive. The caller holds the
// lock mu.
func (s *fabric) admit(w wanted) error {
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
func (s *fabric) find(volume, node string) *attachment {
	for _, a := range s.attachments {
		if a.volume == volume && a.node == node {
			return a
		}
	}
	return nil
}

// detach ends the attachments of a volume to a node, or to all nodes if node is empty. When it
// returns, no change of these nodes reaches the disk. The caller holds the lock admin.
func (s *fabric) detach(volume, node string, c cause) {
	for _, a := range s.attached(func(a *attachment) bool { return a.volume == volume && (node == "" || a.node == node) }) {
		s.set(a, func() {
			a.open = false
			delete(s.attachments, a.id)
			e := a.event(c)
			e.Kind = KindDetach
			s.add(e)
		})
	}
}

// permitWrites makes the attachment of a driver without ControllerPublish writable. The caller holds
// the lock admin.
func (s *fabric) permitWrites(a *attachment) error {
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
		s.add(a.event(cause{}))
		s.judgeAttachment(a, cause{})
	})

	return nil
}

func (s *fabric) admitWriter(a *attachment) error {
	for _, other := range s.attachments {
		if other.volume == a.volume && conflict(holder{node: a.node, mode: a.mode, writable: true}, other.holder()) != "" {
			return status.Errorf(codes.FailedPrecondition, "node %q may write to volume %q", other.node, a.volume)
		}
	}
	return nil
}

// judgeAttachment records the rules that an open attachment breaks together with the others. The
// caller holds the lock mu.
func (s *fabric) judgeAttachment(a *attachment, c cause) {
	count := int64(0)
	for _, other := range s.attachments {
		if other.node == a.node {
			count++
		}
		if other.volume != a.volume || !other.open || !a.open {
			continue
		}
		if rule := conflict(a.holder(), other.holder()); rule != "" {
			e := a.event(c)
			e.Message = fmt.Sprintf("%s is attached to %s as %s", a.volume, other.node, other.mode)
			s.addViolation(rule, e)
		}
	}

	if limit := s.nodes[a.node].Limit; limit > 0 && count > limit {
		e := a.event(c)
		e.Message = fmt.Sprintf("%d volumes are attached to %s, which has a limit of %d", count, a.node, limit)
		s.addViolation(RuleLimit, e)
	}
}

// judgeWrite records that a node wrote beside another writer, once for each pair of attachments. The
// caller holds the lock mu.
func (s *fabric) judgeWrite(a *attachment, e Event) {
	for _, other := range s.attachments {
		if other.volume != a.volume || !other.open || !other.writable() {
			continue
		}

		pair := a.id + " " + other.id
		if conflict(holder{node: a.node, mode: a.mode, writable: true}, other.holder()) == "" || s.judged[pair] {
			continue
		}

		s.judged[pair] = true
		e.Message = fmt.Sprintf("%s is attached to %s as %s", a.volume, other.node, other.mode)
		s.addViolation(RuleForeignWrite, e)
	}
}
