package san

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Call is a CSI call in flight.
type Call struct {
	Method string
	Node   string // node whose driver received the call
	Volume string
	Target string // node_id of the call
	Held   bool   // waits for a Hold or a Delay

	// Abandoned is set if the caller has stopped waiting. The call still has its effect.
	Abandoned bool
}

// changing contains the methods of the controller that change something for one volume.
var changing = map[string]bool{
	"CreateVolume": true, "DeleteVolume": true, "ControllerPublishVolume": true, "ControllerUnpublishVolume": true,
	"ControllerExpandVolume": true, "CreateSnapshot": true,
}

// perform executes a call: it records the call, applies the faults, and lets the controller do its
// work. The work also happens if the caller has stopped waiting, as with real storage.
func (s *SAN) perform(r request, gone <-chan struct{}) answer {
	m, handle, err := decode(r)
	if err != nil {
		return failed(err)
	}

	c := &call{method: r.Method, node: r.Node, volume: r.Volume, gone: gone}
	if r.Timeout > 0 {
		c.deadline = time.Now().Add(r.Timeout)
	}
	if m != nil {
		c.volume, c.target = subject(m)
	}

	code, lose := s.begin(c)
	if code != codes.OK {
		err := status.Errorf(code, "the test made %s fail", c.method)
		s.end(c, err)
		return failed(err)
	}
	if m == nil { // the driver does the work
		s.end(c, nil)
		return answer{Lose: lose}
	}

	reply, err := handle(&controller{fabric: s.fabric, call: c}, m)
	s.end(c, err)
	if err != nil {
		return failed(err)
	}

	raw, err := proto.Marshal(reply.(proto.Message))
	if err != nil {
		return failed(err)
	}

	return answer{Body: raw, Lose: lose}
}

// begin records a call, and waits while faults hold it. It returns the code with which the call must
// fail, and whether the caller must not get the answer.
func (s *SAN) begin(c *call) (code codes.Code, lose bool) {
	s.mu.Lock()
	s.number++
	c.number = s.number
	s.add(c.event(KindCall))

	if changing[c.method] && c.volume != "" {
		s.judgeCall(c)
		s.calls[c.number] = c
	}
	if c.method == "ControllerUnpublishVolume" && c.target == "" {
		s.addViolation(RuleEmptyNode, c.event(KindViolation))
	}
	s.mu.Unlock()

	return s.suffer(c.method, c.node, func(held bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.held = held
	})
}

// judgeCall records that another node has a call for the same volume in flight. The caller holds
// the lock mu.
func (s *SAN) judgeCall(c *call) {
	for _, other := range s.calls {
		if other.volume != c.volume || other.node == c.node || other.abandoned() {
			continue
		}

		e := c.event(KindCall)
		e.Message = fmt.Sprintf("%s of %s is in flight", other.method, other.node)
		s.addViolation(RuleTwoCallers, e)
	}
}

func (s *SAN) end(c *call, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c.number)
	e := c.event(KindAnswer)
	e.Code, e.Message, e.Late = status.Code(err).String(), status.Convert(err).Message(), c.abandoned()
	s.add(e)
}

// InFlight returns the changing calls to the controller that have not ended.
func (s *SAN) InFlight() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()

	var all []Call
	for n := int64(1); n <= s.number; n++ {
		if c := s.calls[n]; c != nil {
			all = append(all, Call{Method: c.method, Node: c.node, Volume: c.volume, Target: c.target, Held: c.held, Abandoned: c.abandoned()})
		}
	}

	return all
}

// decode returns the message of a call to the controller, and the function that answers it. Both
// are nil if the driver itself answers the call.
func decode(r request) (proto.Message, func(csi.ControllerServer, proto.Message) (any, error), error) {
	if r.Op == opEnter {
		return nil, nil, nil
	}

	for _, m := range csi.Controller_ServiceDesc.Methods {
		if m.MethodName != r.Method {
			continue
		}

		var message proto.Message
		read := func(to any) error { return proto.Unmarshal(r.Body, to.(proto.Message)) }
		keep := func(_ context.Context, req any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
			message = req.(proto.Message)
			return nil, nil
		}
		if _, err := m.Handler(csi.ControllerServer(nil), context.Background(), read, keep); err != nil {
			return nil, nil, status.Errorf(codes.InvalidArgument, "cannot read the request: %v", err)
		}

		handle := func(c csi.ControllerServer, req proto.Message) (any, error) {
			return m.Handler(c, context.Background(), func(to any) error { proto.Merge(to.(proto.Message), req); return nil }, nil)
		}
		return message, handle, nil
	}

	return nil, nil, status.Errorf(codes.Unimplemented, "the SAN has no method %s", r.Method)
}

// subject returns the id of the volume that a call changes, and the node id in the call.
func subject(m proto.Message) (volume, target string) {
	switch one := m.(type) {
	case *csi.CreateVolumeRequest:
		return volumeID(one.GetName()), ""
	case *csi.CreateSnapshotRequest:
		return one.GetSourceVolumeId(), ""
	}

	if one, ok := m.(interface{ GetVolumeId() string }); ok {
		volume = one.GetVolumeId()
	}
	if one, ok := m.(interface{ GetNodeId() string }); ok {
		target = one.GetNodeId()
	}

	return volume, target
}

// volumeID returns the id of the volume with a name.
func volumeID(name string) string { return "san-" + strings.ReplaceAll(name, "/", "_") }
