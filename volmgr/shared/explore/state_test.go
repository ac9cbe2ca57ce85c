package explore_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// id is the only volume. Its mode is single-node, so one host may use it.
const id = "v"

// names are the two hosts, and nodeIDs their CSI node ids.
var (
	names   = [2]string{"a", "b"}
	nodeIDs = [2]string{"n-a", "n-b"}
)

// state is one state of the cluster: the store, both hosts and the storage.
type state struct {
	store store
	hosts [2]host
	net   []sent // transactions of agents that have crashed, which the store may still execute

	attached [2]bool  // the storage gives the host access
	late     []effect // controller calls that were sent, and on which the storage still works

	left     budget
	token    int64   // of the newest hold
	attaches bool    // the storage gives access only to attached hosts
	stray    [2]bool // a paused agent has sent a call after another host had taken it over

	backup []shared.KV // of the store; nil if there is none

	bad string // the rule that the last event has violated
}

// budget limits the events of each kind that may still happen, which bounds the search.
type budget struct {
	mounted  bool // at first, one host has the volume mounted
	saved    bool // the backup has the first state; otherwise the store is saved at any time
	claims   uint8
	releases uint8
	faults   uint8 // controller calls with an error, a lost answer or a late effect
	crashes  uint8 // of an agent
	outages  uint8 // of a host
	leases   uint8 // that end although the agent runs
	races    uint8 // transactions that the store executes later than they were decided
	persons  uint8 // 1 if a person states that a host without power is off
	hooks    uint8 // that switch a host off
	stops    uint8 // of an agent, in order
	sticks   uint8 // processes that keep the volume mounted
	lends    uint8 // detaches that a host cannot make, and hands over
	moves    uint8 // of the volume, by a person
	restores uint8 // of the store from a backup
}

// String lists the events of a budget.
func (b budget) String() string {
	type plain budget // without this method
	text := strings.NewReplacer("{", "", "}", "", ":true", "", "mounted:false", "", "saved:false", "").Replace(fmt.Sprintf("%+v", plain(b)))
	var parts []string
	for part := range strings.FieldsSeq(text) {
		if !strings.HasSuffix(part, ":0") {
			parts = append(parts, strings.ReplaceAll(part, ":", "="))
		}
	}
	return strings.Join(parts, ",")
}

// host is one host with its agent.
type host struct {
	off    bool // the host has no power
	up     bool // the agent runs
	boot   uint8
	staged bool
	target bool
	dead   bool // the mounts return errors, because the storage has no access for the host
	stuck  bool // a process uses the mounts, so they cannot be unmounted
	ended  bool // the last agent was stopped in order

	rec    volume.Record // without an id if the agent has no record of the volume
	member shared.Membership
	claims uint8 // counts the claims, and names their operations
	regs   uint8 // counts the registrations, and names them

	who        shared.Asker
	registered bool // as the agent knows it

	// The last transaction about the volume was the admission by this incarnation, which has announced the call.
	// It is 0 after any other transaction.
	admitted uint64

	step  step
	clean job
	fence job
	reg   registration
	sent  [actors]*sent
}

// actor is a part of the agent that makes one transaction at a time.
type actor uint8

const (
	stepping actor = iota
	registering
	cleaning
	fencing
	asking // for a person
	actors
)

// sent is a transaction on its way to the store.
type sent struct {
	txn  shared.Txn
	by   shared.Asker // without a name for a registration
	done int64        // the revision of its execution; 0 before that
}

// effect is a controller call on which the storage still works.
type effect struct {
	by, target uint8
	publish    bool
}

// bootID returns the id of the current boot of a host.
func (s *state) bootID(x int) string { return fmt.Sprintf("boot-%s%d", names[x], s.hosts[x].boot) }

// mounted reports whether the volume is mounted on a host.
func (h *host) mounted() bool { return h.staged || h.target }

// has reports whether the agent has a record of the volume.
func (h *host) has() bool { return h.rec.Volume.ID != "" }

// wants reports whether a claim on a host wants the volume.
func (h *host) wants() bool { return h.rec.Claims[alloc].Wanted }

// quiet reports whether no late effect of a controller call of a host is possible any more.
func (s *state) quiet(x int) bool {
	return !slices.ContainsFunc(s.late, func(e effect) bool { return int(e.by) == x })
}

// land ends the late effect i, which happens or not.
func (s *state) land(i int, happens bool) {
	e := s.late[i]
	s.late = slices.Delete(slices.Clone(s.late), i, i+1)
	if happens {
		s.attached[e.target] = e.publish
	}
}

// live returns the lease of a host in the store.
func (s *state) live(x int) shared.Entry[shared.Live] {
	return get[shared.Live](s.store, shared.LiveKey(names[x]))
}

// node returns the key of a host in the store.
func (s *state) node(x int) shared.Entry[shared.Node] {
	return get[shared.Node](s.store, shared.NodeKey(names[x]))
}

// alive reports whether the store shows the lease of the agent's own registration.
func (s *state) alive(x int) bool {
	l := s.live(x)
	return l.Exists() && l.Value.Incarnation == s.hosts[x].who.Incarnation
}

// key identifies a state. The same states can follow two states with the same key.
type key [16]byte

// keyOf writes a state. The order of revisions matters, and their values do not.
type keyOf struct {
	b    []byte
	revs []int64
}

func (k *keyOf) text(s string) { k.b = append(append(k.b, s...), 0) }
func (k *keyOf) num(n uint64)  { k.b = binary.AppendUvarint(k.b, n) }
func (k *keyOf) rev(r int64)   { k.revs = append(k.revs, r) }
func (k *keyOf) bits(is ...bool) {
	n := uint64(0)
	for _, b := range is {
		n <<= 1
		if b {
			n |= 1
		}
	}
	k.num(n)
}

// key returns the key of a state, and its revisions in ascending order.
func (s *state) key() (key, []int64) {
	k := &keyOf{b: make([]byte, 0, 4096), revs: make([]int64, 0, 64)}
	k.rev(0)
	l := s.left
	k.b = append(k.b, l.claims, l.releases, l.faults, l.crashes, l.outages, l.leases, l.races, l.persons, l.hooks, l.stops, l.sticks, l.lends, l.moves, l.restores)
	k.bits(s.attached[0], s.attached[1], s.stray[0], s.stray[1])
	k.rev(s.token)
	k.kvs(s.store.kvs)
	k.kvs(s.backup)

	for i := range s.hosts {
		k.host(&s.hosts[i])
	}
	for _, e := range s.late {
		k.b = append(k.b, 'l', e.by, e.target)
		k.bits(e.publish)
	}
	for _, one := range s.net {
		k.txn(one.txn)
	}

	ranks := slices.Clone(k.revs)
	slices.Sort(ranks)
	ranks = slices.Compact(ranks)
	for _, r := range k.revs {
		i, _ := slices.BinarySearch(ranks, r)
		k.num(uint64(i))
	}
	sum := sha256.Sum256(k.b)
	return key(sum[:16]), ranks
}

// rank replaces each revision by its place in an ascending list, which begins with 0. Equal keys in
// different states then have equal revisions more often, so the tables of the store serve more reads.
func (s *state) rank(revs []int64) {
	of := func(r int64) int64 {
		i, _ := slices.BinarySearch(revs, r)
		return int64(i)
	}
	s.token = of(s.token)
	s.store.kvs, s.backup = slices.Clone(s.store.kvs), slices.Clone(s.backup)
	for _, kvs := range [][]shared.KV{s.store.kvs, s.backup} {
		for i := range kvs {
			kvs[i].Create, kvs[i].Mod = of(kvs[i].Create), of(kvs[i].Mod)
		}
	}
	s.store.rev = int64(len(revs))
	ranked := func(one sent) sent {
		one.txn.If = slices.Clone(one.txn.If)
		for i := range one.txn.If {
			one.txn.If[i].Revision = of(one.txn.If[i].Revision)
		}
		one.done = of(one.done)
		return one
	}
	s.net = slices.Clone(s.net)
	for i := range s.net {
		s.net[i] = ranked(s.net[i])
	}
	for x := range s.hosts {
		h := &s.hosts[x]
		h.rec.Node.Hold.Token.Revision = of(h.rec.Node.Hold.Token.Revision)
		for i, one := range h.sent {
			if one != nil {
				now := ranked(*one)
				h.sent[i] = &now
			}
		}
	}
}

func (k *keyOf) kvs(all []shared.KV) {
	k.num(uint64(len(all)))
	for _, kv := range all {
		k.text(kv.Key)
		k.text(string(kv.Value))
		k.rev(kv.Create)
		k.rev(kv.Mod)
	}
}

func (k *keyOf) txn(t shared.Txn) {
	k.num(uint64(len(t.If)))
	for _, c := range t.If {
		k.text(c.Key)
		k.bits(c.Create, c.Revision == 0)
		k.rev(c.Revision)
	}
	k.num(uint64(len(t.Then)))
	for _, op := range t.Then {
		k.text(op.Key)
		k.text(string(op.Value))
		k.num(uint64(op.Kind))
	}
}

func (k *keyOf) host(h *host) {
	k.bits(h.off, h.up, h.staged, h.target, h.dead, h.stuck, h.ended, h.registered)
	k.num(h.admitted)
	k.b = append(k.b, h.boot, h.claims, h.regs)
	k.asker(h.who)
	k.record(h.rec)
	k.num(h.member.Incarnation)
	k.num(uint64(h.member.Epoch))
	k.num(uint64(len(h.member.Registrations)))
	k.text(string(h.step.kind))
	k.text(string(h.step.action.Kind))
	k.bits(h.step.action.Sure, h.step.action.Yield, h.step.mounted)
	k.asker(h.step.who)
	k.job(h.clean)
	k.job(h.fence)
	k.text(h.reg.self.Registration + string(h.reg.stage))
	for i, one := range h.sent {
		if one != nil {
			k.num(uint64(i))
			k.rev(one.done)
			k.bits(one.done > 0)
			if one.done == 0 {
				k.txn(one.txn)
			}
		}
	}
}

func (k *keyOf) asker(a shared.Asker) {
	k.num(a.Incarnation)
	k.num(uint64(a.Era.Epoch))
}

func (k *keyOf) job(j job) {
	k.text(string(j.kind))
	k.text(j.operation)
	k.text(string(j.one.Call) + j.one.Operation)
	k.num(j.one.Incarnation)
	k.text(j.one.Executor + j.one.Target + j.one.NodeID)
	k.bits(j.reclaimed, j.one.Fence, j.one.Taken, j.one.Mounted)
	k.asker(j.who)
}

func (k *keyOf) record(r volume.Record) {
	n, h := r.Node, r.Node.Hold
	c, ok := r.Claims[alloc]
	for _, t := range []string{
		r.Volume.ID, string(n.Attached), string(n.Staged), n.NodeID, string(h.State), h.Operation, string(h.Before.State),
		string(c.State), string(c.Published), n.Boot, n.StagingPath,
	} {
		k.text(t)
	}
	k.bits(ok, c.Wanted, n.Proven, n.Mount != nil, c.Mount != nil, n.Uses.Attach, n.Uses.Stage, n.Mode != nil, h.Confirmed, h.Lost, h.Unverified, h.Before.Confirmed)
	k.rev(h.Token.Revision)
	k.num(uint64(h.Token.Epoch))
	for _, w := range n.Watches {
		k.text("w" + w.Path)
		k.bits(w.Undo, w.Attachment)
	}
}
