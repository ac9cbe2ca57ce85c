package explore_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// The tests in this file check single invariants of docs/design/cluster.md. They let both hosts decide on the
// same state, and execute both transactions. TestExplore checks the same invariants in all states.

// These are the volumes of the tests: one with an attachment, and one without.
var (
	attaching = variant{attach: true, stage: true, lists: true}
	plain     = variant{stage: true}
)

// decided returns the transaction that a decision must have returned.
func decided(t *testing.T, what string, txn shared.Txn, err error) shared.Txn {
	t.Helper()
	if err != nil || len(txn.Then) == 0 {
		t.Fatalf("%s: %+v, %v", what, txn, err)
	}
	return txn
}

// execute executes a transaction of a host, which must succeed. It also checks the rules of the model.
func (s *state) execute(t *testing.T, what string, txn shared.Txn, err error, who shared.Asker) {
	t.Helper()
	if !s.commit(decided(t, what, txn, err), who) {
		t.Fatalf("%s fails", what)
	}
	if s.bad != "" {
		t.Fatalf("%s: %s", what, s.bad)
	}
}

// read reads the keys of the volume and one host. The tables do not know the users, so it does not use them.
func (s *state) read(x int) shared.Situation {
	return must(shared.ParseSituation(names[x], id, s.store.reads(shared.Reads(names[x], id))))
}

// wish returns a request for a hold on the volume.
func (s *state) wish(v variant, x int, access call.AccessMode, reader bool) shared.Ask {
	return shared.Ask{
		Asker: s.hosts[x].who, Operation: "wish-" + names[x], Access: access, Reader: reader,
		Attach: v.attach, NodeID: nodeIDs[x], Deadline: deadline, Controller: true, Now: now,
	}
}

// held reports whether an error says that the host must wait for another one.
func held(err error) bool {
	var ce *volume.CallError
	return errors.As(err, &ce) && ce.Code == volume.CodeHeld
}

// TestOneWriter checks invariant I1. Two hosts ask for the volume at the same time, in all pairs of modes.
// Both get it only if the modes permit that, whether the second host has decided before or after the first
// one.
func TestOneWriter(t *testing.T) {
	type right struct {
		access call.AccessMode
		reader bool
	}
	rights := []right{
		{call.SingleNodeReaderOnly, false}, {call.SingleNodeWriter, false}, {call.SingleNodeSingleWriter, false}, {call.SingleNodeMultiWriter, false},
		{call.MultiNodeReaderOnly, false}, {call.MultiNodeSingleWriter, false}, {call.MultiNodeSingleWriter, true}, {call.MultiNodeMultiWriter, false},
	}
	for _, a := range rights {
		for _, b := range rights {
			several := a.access == call.MultiNodeReaderOnly || a.access == call.MultiNodeMultiWriter
			oneReads := a.access == call.MultiNodeSingleWriter && (a.reader || b.reader)
			both := a.access == b.access && (several || oneReads)

			s := first(plain, budget{})
			before, err := s.read(1).Admit(s.wish(plain, 1, b.access, b.reader))
			before = decided(t, "the decision of the second host", before, err)
			txn, err := s.read(0).Admit(s.wish(plain, 0, a.access, a.reader))
			s.execute(t, "the admission of the first host", txn, err, s.hosts[0].who)
			if _, done := s.store.do(before); done && !both {
				t.Errorf("%+v and %+v: both hosts get the volume at the same time", a, b)
			}
			txn, err = s.read(1).Admit(s.wish(plain, 1, b.access, b.reader))
			if both != (err == nil) || err != nil && !held(err) {
				t.Errorf("%+v, then %+v: %v", a, b, err)
			}
			if both && err == nil {
				s.commit(txn, s.hosts[1].who) // the model has the rule for one mode only
			}
		}
	}
}

// TestDurableHold checks invariant I2, as far as it does not concern etcd itself: neither the hold nor any
// other key that gives a permission ends with a lease. TestLeaderKilled in agent/cluster kills members of
// etcd.
func TestDurableHold(t *testing.T) {
	for _, v := range []variant{plain, attaching} {
		s := first(v, budget{mounted: true})
		if !s.writes(0) || s.bad != "" {
			t.Fatalf("the host does not use the volume: %s\n%s", s.bad, s.String())
		}
		for _, kv := range s.store.kvs {
			if leased := strings.HasPrefix(kv.Key, "live/"); leased != (kv.Lease != 0) {
				t.Errorf("%s has the lease %d", kv.Key, kv.Lease)
			}
		}
		for _, name := range names {
			s.store = s.store.delete(shared.LiveKey(name))
		}
		if !s.shows(0) || s.read(0).Use.Value.Holder != names[0] {
			t.Error("after the end of all leases, the store does not show the hold")
		}
	}
}

// TestNoWriteAfterFence checks invariant I3. A host is fenced, and loses its volume by a detach. Before that, it
// has decided on all kinds of transactions, and the store executes none of them afterwards. The host can
// also decide on none.
func TestNoWriteAfterFence(t *testing.T) {
	s := first(attaching, budget{mounted: true})
	who := s.hosts[0].who
	op := s.hosts[0].rec.Node.Hold.Operation
	announced := func(method call.Method) shared.AnnouncedCall {
		return shared.AnnouncedCall{Asker: who, Operation: op, Call: method, Target: names[0], NodeID: nodeIDs[0], Deadline: deadline, Now: now}
	}
	decisions := map[string]func(s *state) (shared.Txn, error){
		"give up":  func(s *state) (shared.Txn, error) { return s.read(0).GiveUp(who, op, now) },
		"late end": func(s *state) (shared.Txn, error) { return s.read(0).GiveUp(who, "unknown", now) },
		"attach": func(s *state) (shared.Txn, error) {
			return s.read(0).BeginAttachmentCall(announced(call.ControllerPublish))
		},
		"detach": func(s *state) (shared.Txn, error) {
			return s.read(0).BeginAttachmentCall(announced(call.ControllerUnpublish))
		},
		"expand": func(s *state) (shared.Txn, error) {
			p := s.place(attaching, 0)
			return p.BeginStorageCall(shared.StorageCall{AnnouncedCall: announced(call.ControllerExpand)}, p.Volume.Value)
		},
		"stop":       func(s *state) (shared.Txn, error) { return s.arrival(0).Leave(who, now, now) },
		"drain":      func(s *state) (shared.Txn, error) { return s.arrival(0).SetState(who, shared.NodeDraining, now) },
		"describe":   func(s *state) (shared.Txn, error) { return s.arrival(0).Describe(who, []byte("{}")) },
		"quarantine": func(s *state) (shared.Txn, error) { return s.arrival(0).SetQuarantined(who, []string{id}) },
	}
	before := map[string]shared.Txn{}
	for what, decide := range decisions {
		txn, err := decide(&s)
		before[what] = decided(t, what, txn, err)
	}

	check := func(when string) {
		for _, what := range slices.Sorted(maps.Keys(decisions)) {
			if _, done := s.store.do(before[what]); done {
				t.Errorf("%s: the store executes an earlier transaction: %s", when, what)
			}
			if txn, err := decisions[what](&s); !errors.Is(err, shared.ErrUnregistered) {
				t.Errorf("%s: %s: %+v, %v", when, what, txn, err)
			}
		}
	}
	fencer := s.hosts[1].who
	s.store = s.store.delete(shared.LiveKey(names[0]))
	txn, err := s.fenceOf(1).Begin(fencer, now)
	s.execute(t, "the begin of the fencing", txn, err, fencer)
	check("in the fencing")

	txn, err = s.lost(1).BeginDetach(fencer, "fence", deadline, now)
	s.execute(t, "the announcement of the detach", txn, err, fencer)
	s.attached[0] = false
	txn, err = s.lost(1).DropDetached(fencer, "fence", now)
	s.execute(t, "the drop", txn, err, fencer)
	txn, err = s.fenceOf(1).End(fencer, now)
	s.execute(t, "the end of the fencing", txn, err, fencer)
	check("after the fencing")
	if !s.proven(0, 0) || s.store.has(shared.HoldKey(names[0], id)) {
		t.Error("the hold is not dropped, or the proof does not name the volume")
	}
}

// TestTokensGrow checks invariant I7. The volume goes from host to host, also by a takeover, and then the store is
// restored from a backup in which its revisions are lower. Each token is greater than all earlier ones.
func TestTokensGrow(t *testing.T) {
	s := first(plain, budget{restores: 1})
	s.backups(plain, func(next state, _ string, _ int) { s = next })
	last := volume.Token{}
	use := func(x int) {
		t.Helper()
		ask := s.wish(plain, x, call.SingleNodeMultiWriter, false)
		txn, err := s.read(x).Admit(ask)
		s.execute(t, "the admission", txn, err, s.hosts[x].who)
		token, ok := s.read(x).Granted(ask)
		if !ok || !last.Before(token) || token.Before(last) {
			t.Errorf("the token %s follows %s", token, last)
		}
		last = token
	}
	free := func(x int) {
		t.Helper()
		txn, err := s.read(x).GiveUp(s.hosts[x].who, "wish-"+names[x], now)
		s.execute(t, "the end of the hold", txn, err, s.hosts[x].who)
	}
	for range 3 {
		for x := range s.hosts {
			use(x)
			free(x)
		}
	}
	use(0)
	s.store = s.store.delete(shared.LiveKey(names[0]))
	s.hosts[0].off = true
	txn, err := s.fenceOf(1).Declare(s.hosts[1].who, "person", "off", now)
	s.execute(t, "the statement of a person", txn, err, s.hosts[1].who)
	txn, err = s.lost(1).DropProven(s.hosts[1].who, deadline, now)
	s.execute(t, "the drop", txn, err, s.hosts[1].who)
	use(1)

	s.backups(plain, func(next state, _ string, _ int) { s = next })
	s.store.rev = 0
	for _, kv := range s.store.kvs {
		if !strings.HasPrefix(kv.Key, shared.MetaKey) {
			s.store.rev = max(s.store.rev, kv.Mod)
		}
	}
	s.hosts[0].off = false
	for range 5 {
		for x := range s.hosts {
			s.registers(plain, x, func(next state, _ string, _ int) { s = next })
		}
	}
	s.resumes(plain, func(next state, _ string, _ int) { s = next })
	s.token = 0 // the model compares the revisions alone
	use(0)
	free(0)
	use(1)
}

// announcement is a decision that announces a controller call.
type announcement struct {
	what   string
	decide func(s *state) (shared.Txn, error)
	own    bool // for the attachment of the host itself; such calls of one host replace each other
}

// TestOneCall checks invariant I11. Both hosts decide on a controller call for the volume at the same time. The
// store executes the transaction of one of them, and the other host then decides on none.
func TestOneCall(t *testing.T) {
	expand := func(x int) func(s *state) (shared.Txn, error) {
		return func(s *state) (shared.Txn, error) {
			p := s.place(attaching, x)
			c := shared.AnnouncedCall{Asker: s.hosts[x].who, Operation: "expand-" + names[x], Call: call.ControllerExpand, Deadline: deadline, Now: now}
			return p.BeginStorageCall(shared.StorageCall{AnnouncedCall: c}, p.Volume.Value)
		}
	}
	admit := func(x int) func(s *state) (shared.Txn, error) {
		return func(s *state) (shared.Txn, error) {
			return s.read(x).Admit(s.wish(attaching, x, call.SingleNodeMultiWriter, false))
		}
	}
	correct := func(x int) func(s *state) (shared.Txn, error) {
		return func(s *state) (shared.Txn, error) {
			o := s.orphan(x, shared.Call{Executor: names[x], Target: names[1-x]})
			return o.BeginUnpublish(s.hosts[x].who, nodeIDs[1-x], deadline, now)
		}
	}
	ends := func(method call.Method) func(s *state) (shared.Txn, error) {
		return func(s *state) (shared.Txn, error) {
			return s.read(0).BeginAttachmentCall(shared.AnnouncedCall{
				Asker: s.hosts[0].who, Operation: s.hosts[0].rec.Node.Hold.Operation, Call: method, Target: names[0], NodeID: nodeIDs[0], Deadline: deadline, Now: now,
			})
		}
	}
	fence := func(s *state) (shared.Txn, error) {
		return s.lost(1).BeginDetach(s.hosts[1].who, "fence", deadline, now)
	}
	taken := func(s *state) (shared.Txn, error) { return s.lost(1).DropProven(s.hosts[1].who, deadline, now) }

	free, used := first(attaching, budget{}), first(attaching, budget{mounted: true})
	fenced, off := used, used
	fenced.store = used.store.delete(shared.LiveKey(names[0]))
	txn, err := fenced.fenceOf(1).Begin(fenced.hosts[1].who, now)
	fenced.execute(t, "the begin of the fencing", txn, err, fenced.hosts[1].who)
	off.store = used.store.delete(shared.LiveKey(names[0]))
	off.crash(0, true)
	txn, err = off.fenceOf(1).Declare(off.hosts[1].who, "person", "off", now)
	off.execute(t, "the statement of a person", txn, err, off.hosts[1].who)
	for _, c := range []struct {
		s   state
		all []announcement
	}{
		{free, []announcement{
			{"the admission of a", admit(0), false}, {"the admission of b", admit(1), false}, {"an expansion by a", expand(0), false},
			{"an expansion by b", expand(1), false}, {"a correction by b", correct(1), false},
		}},
		{used, []announcement{
			{"an attach by a", ends(call.ControllerPublish), true}, {"a detach by a", ends(call.ControllerUnpublish), true},
			{"an expansion by b", expand(1), false},
		}},
		{fenced, []announcement{{"a detach of a by b", fence, false}, {"an expansion by b", expand(1), false}}},
		{off, []announcement{{"the drop of a by b", taken, false}, {"an expansion by b", expand(1), false}}},
	} {
		for _, p := range c.all {
			for _, q := range c.all {
				if p.what != q.what && (!p.own || !q.own) {
					onlyFirst(t, c.s, p, q)
				}
			}
		}
	}
}

// onlyFirst checks that the announcement of a call excludes another one, which was decided before or after it.
func onlyFirst(t *testing.T, s state, p, q announcement) {
	t.Helper()
	before, err := q.decide(&s)
	before = decided(t, q.what, before, err)
	txn, err := p.decide(&s)
	after, done := s.store.do(decided(t, p.what, txn, err))
	if !done || !after.has(shared.CallKey(id)) {
		t.Fatalf("%s announces no call", p.what)
	}
	s.store = after
	if _, done := s.store.do(before); done {
		t.Errorf("%s, then %s, which was decided before: the store executes both", p.what, q.what)
	}
	if txn, err := q.decide(&s); err == nil {
		t.Errorf("%s, then %s: %+v", p.what, q.what, txn)
	}
}

// These match the rows of the table, and the tests in a row.
var (
	invariantRow = regexp.MustCompile(`(?m)^\| (I\d+) \|.*\| ([^|]*) \|$`)
	namedTest    = regexp.MustCompile("`([a-z/]+)` `(Test\\w+)`")
	listedTest   = regexp.MustCompile(`(?:Test|Benchmark)[A-Z]\w+`)
)

// TestInvariantsAreTested checks that docs/design/cluster.md names a test of each invariant, that the test exists,
// and that its comment names the invariant. The tests in the list of the cluster tests exist, too.
func TestInvariantsAreTested(t *testing.T) {
	const root = "../../../"
	page, err := os.ReadFile(root + "docs/design/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := invariantRow.FindAllStringSubmatch(string(page), -1)
	for i, row := range rows {
		if want := fmt.Sprint("I", i+1); row[1] != want {
			t.Errorf("row %d is about %s", i+1, row[1])
		}
		named := namedTest.FindAllStringSubmatch(row[2], -1)
		if len(named) == 0 {
			t.Errorf("%s has no test", row[1])
		}
		for _, m := range named {
			comment := regexp.MustCompile(`(?m)((?:^//.*\n)*)^func ` + m[2] + `\(`).FindStringSubmatch(sources(t, root+m[1]))
			switch {
			case comment == nil:
				t.Errorf("%s: %s has no %s", row[1], m[1], m[2])
			case !regexp.MustCompile(`\b` + row[1] + `\b`).MatchString(comment[1]):
				t.Errorf("the comment of %s in %s does not name %s", m[2], m[1], row[1])
			}
		}
	}
	if len(rows) != 11 {
		t.Errorf("the page has %d invariants, want 11", len(rows))
	}

	tests := sources(t, root+"cmd/volagent/test/cluster") + sources(t, root+"cmd/volagent/test/load")
	_, list, _ := strings.Cut(tests, "// These are the invariants of a cluster")
	list, _, _ = strings.Cut(list, "\n\n")
	listed := listedTest.FindAllString(list, -1)
	for _, name := range listed {
		if !strings.Contains(tests, "\nfunc "+name+"(") {
			t.Errorf("invariants_test.go lists %s, which does not exist", name)
		}
	}
	if len(listed) < 20 {
		t.Errorf("invariants_test.go lists only %q", listed)
	}
}

// sources returns the text of all tests in a folder.
func sources(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(dir + "/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests: %v", dir, err)
	}
	var all strings.Builder
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(raw)
	}
	return all.String()
}
