package shared

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// hostA is the host that asks in the tests of definitions.
var hostA = Asker{Node: "a", Incarnation: 3, Era: Era{Epoch: 1}}

// newPlace returns a place in a cluster with host a and without the volume "db".
func newPlace(change ...func(*Place)) Place {
	p := Place{node: "a", id: "db", driver: "d", external: "x"}
	p.Meta, p.Node = stored(MetaKey, Meta{Schema: Schema, Epoch: 1}), stored(NodeKey("a"), Node{Incarnation: 3, State: NodeReady})
	p.Volume.Key, p.Use.Key, p.Call.Key, p.Hold.Key = VolumeKey("db"), UseKey("db"), CallKey("db"), HoldKey("a", "db")
	p.External.Key, p.Question.Key = ExternalKey("d", "x"), QuestionKey("d", "x")
	for _, f := range change {
		f(&p)
	}
	return p
}

// defined adds the volume "db" with its storage.
func defined(p *Place) {
	p.Volume = stored(p.Volume.Key, Definition{Volume: volume.Volume{ID: "db", Driver: "d", ExternalID: "x"}})
	p.Use, p.External = stored(p.Use.Key, Use{Generation: 4}), stored(p.External.Key, Claimed{Volume: "db"})
}

// deleting sets the mark of a delete that has begun.
func deleting(p *Place) {
	p.Volume.Value.Deleting, p.Volume.Value.Volume.Provision = true, volume.Deleting
}

// taken gives the storage to another volume.
func taken(p *Place) { p.External = stored(p.External.Key, Claimed{Volume: "other"}) }

// usedBy makes a host the holder of the volume. If it is the asking host, it also gets the hold.
func usedBy(node string) func(*Place) {
	return func(p *Place) {
		p.Use.Value.Access, p.Use.Value.Holder = call.SingleNodeWriter, node
		if node == p.node {
			p.Hold = stored(p.Hold.Key, Hold{Operation: "op", Access: call.SingleNodeWriter})
		}
	}
}

// readBy makes hosts users of the volume in a multi-node mode.
func readBy(nodes ...string) func(*Place) {
	return func(p *Place) {
		p.Use.Value.Access = call.MultiNodeReaderOnly
		for _, node := range nodes {
			p.Users = append(p.Users, stored(UserKey("db", node), User{}))
		}
	}
}

// calling announces a call.
func calling(node string, incarnation uint64, operation string) func(*Place) {
	return func(p *Place) {
		p.Call = stored(p.Call.Key, Call{Executor: node, Incarnation: incarnation, Operation: operation, Call: call.ControllerExpand, Since: time.Unix(9, 0)})
	}
}

// takenOver shows a call that its executor has taken over.
func takenOver(p *Place) { p.Call.Value.Taken = true }

// unregistered shows the asking host with a later registration.
func unregistered(p *Place) { p.Node.Value.Incarnation = 4 }

// newer raises the schema of the cluster.
func newer(p *Place) { p.Meta.Value.Schema = Schema + 1 }

// asked shows a question about the storage.
func asked(node, id string) func(*Place) {
	return func(p *Place) {
		p.Question = stored(p.Question.Key, Question{ID: id, Node: node, Volume: "db", Driver: "d", ExternalID: "x"})
	}
}

// keysOf returns the operations of a transaction in a short form: + sets a key, and - deletes it.
func keysOf(t Txn) (all []string) {
	for _, op := range t.Then {
		all = append(all, map[OpKind]string{OpPut: "+", OpDelete: "-"}[op.Kind]+op.Key)
	}
	slices.Sort(all)
	return all
}

// comparedKeys returns the keys that a transaction compares, without those of the registration.
func comparedKeys(t Txn) (all []string) {
	for _, c := range t.If {
		if c.Key != MetaKey && c.Key != NodeKey("a") {
			all = append(all, c.Key)
		}
	}
	return all
}

// decision is one decision about a definition.
type decision struct {
	state []func(*Place)
	do    func(Place) (Txn, error)
	keys  string   // the operations of the transaction, or empty for a refusal
	needs []string // keys that the transaction compares
	kind  error
	words string // of the refusal
}

func (d decision) check(t *testing.T) {
	t.Helper()
	txn, err := d.do(newPlace(d.state...))
	if d.kind != nil {
		if !errors.Is(err, d.kind) || !strings.Contains(err.Error(), d.words) || len(txn.Then) > 0 {
			t.Errorf("got %v and %q, want a refusal with %q", err, keysOf(txn), d.words)
		}
		return
	}
	if got := strings.Join(keysOf(txn), " "); err != nil || got != d.keys {
		t.Errorf("got %q, %v\nwant %q", got, err, d.keys)
	}
	if len(txn.Then) == 0 {
		return
	}
	compared := comparedKeys(txn)
	for _, key := range d.needs {
		if !slices.Contains(compared, key) {
			t.Errorf("the transaction compares %q, and not %s", compared, key)
		}
	}
	if len(txn.If) < len(compared)+2 || len(txn.Else) != len(PlaceReads("a", volume.Volume{ID: "db", Driver: "d", ExternalID: "x"})) {
		t.Errorf("the transaction does not compare the registration, or does not read the place anew: %+v", txn)
	}
}

// The keys of the volume "db" and of its storage.
var (
	volumeKey, useKey, callKey = VolumeKey("db"), UseKey("db"), CallKey("db")
	holdKey, userKey           = HoldKey("a", "db"), UserKey("db", "a")
	externalKey, noticeKey     = ExternalKey("d", "x"), NoticeKey("db")
	questionKey                = QuestionKey("d", "x")
)

// ops joins the short forms of operations in the order of keysOf.
func ops(all ...string) string {
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestDefine checks the decisions to add, change and remove a definition.
func TestDefine(t *testing.T) {
	v := volume.Volume{ID: "db", Driver: "d", ExternalID: "x"}
	define := func(p Place) (Txn, error) { return p.Define(hostA, v) }
	redefine := func(p Place) (Txn, error) { return p.Redefine(hostA, p.Volume.Value) }
	undefine := func(operation string) func(Place) (Txn, error) {
		return func(p Place) (Txn, error) { return p.Undefine(hostA, operation) }
	}
	removal := ops("-"+volumeKey, "-"+useKey, "-"+callKey, "-"+noticeKey, "-"+externalKey, "+"+RemovedKey)
	unfinished := func(p *Place) { defined(p); p.external = ""; p.External = Entry[Claimed]{} }

	for name, d := range map[string]decision{
		"define":                      {do: define, keys: ops("+"+volumeKey, "+"+useKey, "+"+externalKey), needs: []string{volumeKey, useKey, externalKey}},
		"define, unregistered":        {state: with(unregistered), do: define, kind: ErrUnregistered, words: "registered again"},
		"define, newer schema":        {state: with(newer), do: define, kind: volume.ErrRefused, words: "it only reads"},
		"define a known id":           {state: with(defined), do: define, kind: volume.ErrRefused, words: `already has a volume "db"`},
		"define taken storage":        {state: with(taken), do: define, kind: volume.ErrStorageTaken, words: `registered in the cluster as volume "other"`},
		"redefine":                    {state: with(defined), do: redefine, keys: "+" + volumeKey, needs: []string{volumeKey, useKey}},
		"redefine in use":             {state: with(defined, usedBy("b")), do: redefine, keys: ops("+"+volumeKey, "+"+noticeKey), needs: []string{volumeKey, useKey}},
		"redefine, unregistered":      {state: with(defined, unregistered), do: redefine, kind: ErrUnregistered},
		"redefine nothing":            {do: redefine, kind: volume.ErrNotFound, words: `no volume "db"`},
		"undefine":                    {state: with(defined), do: undefine(""), keys: removal, needs: []string{volumeKey, useKey, callKey, externalKey, Users("db").Key}},
		"undefine without storage":    {state: with(unfinished), do: undefine(""), keys: ops("-"+volumeKey, "-"+useKey, "-"+callKey, "-"+noticeKey, "+"+RemovedKey)},
		"undefine in use":             {state: with(defined, usedBy("b")), do: undefine(""), kind: volume.ErrRefused, words: "held by host b"},
		"undefine with readers":       {state: with(defined, readBy("c", "e")), do: undefine(""), kind: volume.ErrRefused, words: "held by host c, host e"},
		"undefine with own hold":      {state: with(defined, usedBy("a")), do: undefine(""), kind: volume.ErrRefused, words: "held by host a"},
		"undefine beside a call":      {state: with(defined, calling("b", 1, "o")), do: undefine(""), kind: volume.ErrRefused, words: `host "b" is calling ControllerExpandVolume`},
		"undefine beside an own call": {state: with(defined, calling("a", 3, "o")), do: undefine(""), kind: volume.ErrRefused, words: `host "a" is calling`},
		"undefine after an own call":  {state: with(defined, calling("a", 3, "o")), do: undefine("o"), keys: removal, needs: []string{callKey}},
		"undefine after a crash":      {state: with(defined, calling("a", 2, "o")), do: undefine(""), kind: volume.ErrRefused, words: `host "a" is calling`},
		"undefine beside a takeover":  {state: with(defined, calling("a", 3, ""), takenOver), do: undefine(""), kind: volume.ErrRefused, words: `host "a" is calling`},
		"undefine another's call":     {state: with(defined, calling("b", 3, "o")), do: undefine("o"), kind: volume.ErrRefused, words: `host "b" is calling`},
		"undefine nothing":            {do: undefine(""), kind: volume.ErrNotFound},
		"undefine, unregistered":      {state: with(defined, unregistered), do: undefine(""), kind: ErrUnregistered},
	} {
		t.Run(name, d.check)
	}
}

func with(all ...func(*Place)) []func(*Place) { return all }

// TestStorageCall checks the decisions around a controller call for a definition.
func TestStorageCall(t *testing.T) {
	begin := func(method call.Method, alone bool) func(Place) (Txn, error) {
		return func(p Place) (Txn, error) {
			return p.BeginStorageCall(StorageCall{AnnouncedCall: AnnouncedCall{Asker: hostA, Operation: "o", Call: method}, Alone: alone}, p.Volume.Value)
		}
	}
	create := func(p Place) (Txn, error) {
		p.external = ""
		return p.BeginStorageCall(StorageCall{AnnouncedCall: AnnouncedCall{Asker: hostA, Operation: "o", Call: call.CreateVolume}},
			Definition{Volume: volume.Volume{ID: "db", Provision: volume.Provisioning}, Operation: "mine"})
	}
	end := func(p Place) (Txn, error) { return p.EndStorageCall(hostA, "o", p.Volume.Value) }
	leave := func(p Place) (Txn, error) { return p.LeaveStorageCall(hostA, "o") }
	expand, remove := begin(call.ControllerExpand, false), begin(call.DeleteVolume, true)
	begun := ops("+"+volumeKey, "+"+callKey)
	other := func(p *Place) { p.Volume.Value.Operation = "other" }

	for name, d := range map[string]decision{
		"create":                       {do: create, keys: ops("+"+volumeKey, "+"+callKey, "+"+useKey), needs: []string{volumeKey, callKey, useKey}},
		"create beside another":        {state: with(defined, other), do: create, kind: volume.ErrRefused, words: "created again meanwhile"},
		"expand":                       {state: with(defined), do: expand, keys: begun, needs: []string{volumeKey, callKey, useKey}},
		"expand in use":                {state: with(defined, usedBy("b")), do: expand, keys: ops("+"+volumeKey, "+"+callKey, "+"+noticeKey)},
		"expand offline in use":        {state: with(defined, usedBy("b")), do: begin(call.ControllerExpand, true), kind: volume.ErrRefused, words: "held by host b"},
		"expand beside a call":         {state: with(defined, calling("b", 1, "p")), do: expand, kind: volume.ErrRefused, words: `host "b" is calling`},
		"expand again":                 {state: with(defined, calling("a", 3, "p")), do: expand, keys: begun, needs: []string{callKey}},
		"expand after a crash":         {state: with(defined, calling("a", 2, "p")), do: expand, keys: begun, needs: []string{callKey}},
		"expand while deleted":         {state: with(defined, deleting), do: expand, kind: volume.ErrRefused, words: "being deleted"},
		"expand, unregistered":         {state: with(defined, unregistered), do: expand, kind: ErrUnregistered},
		"delete":                       {state: with(defined), do: remove, keys: begun, needs: []string{volumeKey, callKey, useKey, Users("db").Key}},
		"delete again":                 {state: with(defined, deleting), do: remove, keys: begun},
		"delete after a crash":         {state: with(defined, calling("a", 2, "p")), do: remove, kind: volume.ErrRefused, words: `host "a" is calling`},
		"delete in use":                {state: with(defined, usedBy("b")), do: remove, kind: volume.ErrRefused, words: "held by host b"},
		"delete with readers":          {state: with(defined, readBy("b")), do: remove, kind: volume.ErrRefused, words: "held by host b"},
		"end":                          {state: with(defined, calling("a", 3, "o")), do: end, keys: ops("+"+volumeKey, "+"+externalKey, "-"+callKey), needs: []string{volumeKey, callKey, useKey, externalKey}},
		"end in use":                   {state: with(defined, usedBy("b"), calling("a", 3, "o")), do: end, keys: ops("+"+volumeKey, "+"+externalKey, "+"+noticeKey, "-"+callKey)},
		"end with taken storage":       {state: with(defined, taken, calling("a", 3, "o")), do: end, kind: volume.ErrStorageTaken, words: `as volume "other"`},
		"end of another call":          {state: with(defined, calling("a", 3, "p")), do: end, kind: volume.ErrRefused, words: "taken over"},
		"end after a takeover":         {state: with(defined, calling("b", 1, "o")), do: end, kind: volume.ErrRefused, words: "taken over"},
		"end after a deregister":       {do: end, kind: volume.ErrRefused, words: "deregistered meanwhile"},
		"end, unregistered":            {state: with(defined, calling("a", 3, "o"), unregistered), do: end, kind: ErrUnregistered},
		"leave":                        {state: with(defined, calling("a", 3, "o")), do: leave, keys: "-" + callKey, needs: []string{callKey}},
		"leave a repeated call":        {state: with(defined, calling("a", 3, "p")), do: leave, keys: ""},
		"leave the call of a takeover": {state: with(defined, calling("b", 1, "o")), do: leave, keys: ""},
		"leave, unregistered":          {state: with(defined, unregistered), do: leave, kind: ErrUnregistered},
	} {
		t.Run(name, d.check)
	}
}

// TestDeletingMark checks that a delete marks the definition in the transaction that announces the
// call, and that no host is admitted after that.
func TestDeletingMark(t *testing.T) {
	p := newPlace(defined)
	def := p.Volume.Value
	def.Volume.Provision = volume.Deleting
	txn, err := p.BeginStorageCall(StorageCall{AnnouncedCall: AnnouncedCall{Asker: hostA, Operation: "o", Call: call.DeleteVolume}, Alone: true}, def)
	if err != nil {
		t.Fatal(err)
	}

	i := slices.IndexFunc(txn.Then, func(o Op) bool { return o.Key == volumeKey })
	e, err := Decode[Definition](KV{Key: volumeKey, Value: txn.Then[i].Value, Mod: 9})
	if err != nil || !e.Value.Deleting || !e.Value.Volume.Shared {
		t.Fatalf("the definition is %+v, %v", e.Value, err)
	}

	sit := Situation{id: "db", Meta: p.Meta, Node: p.Node, Volume: e, Use: p.Use, Hold: Entry[Hold]{KV: KV{Key: holdKey}}, Call: Entry[Call]{KV: KV{Key: callKey}}}
	_, err = sit.Admit(Ask{Asker: hostA, Operation: "h", Access: call.SingleNodeWriter})
	if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("a hold on a volume that is being deleted: %v", err)
	}
	sit.Volume = p.Volume
	if txn, err = sit.Admit(Ask{Asker: hostA, Operation: "h", Access: call.SingleNodeWriter}); err != nil || !slices.Contains(comparedKeys(txn), volumeKey) {
		t.Errorf("an admission does not compare the definition: %+v, %v", txn, err)
	}
}

// TestShown checks the view that the other parts of the agent have of a definition.
func TestShown(t *testing.T) {
	if v := newPlace(defined, deleting, readBy("b", "c")).Shown(); v.Volume.Provision != volume.Deleting || !v.Volume.Shared || !slices.Equal(v.Users, []string{"b", "c"}) || !v.InUse() {
		t.Errorf("%+v", v)
	}
	if v := newPlace(defined, usedBy("b")).Shown(); !slices.Equal(v.Users, []string{"b"}) || v.Access != call.SingleNodeWriter {
		t.Errorf("%+v", v)
	}
	if v := newPlace(defined).Shown(); v.InUse() || len(v.Users) > 0 {
		t.Errorf("%+v", v)
	}
}

// TestPlace checks that the reads of a place are decoded to its fields, and that foreign data is
// refused.
func TestPlace(t *testing.T) {
	v := volume.Volume{ID: "db", Driver: "d", ExternalID: "x"}
	reads := make([][]KV, len(PlaceReads("a", v)))
	values := map[int]KV{
		0: {Key: MetaKey, Value: []byte(`{"schema":1}`)}, 1: {Key: NodeKey("a"), Value: []byte(`{"incarnation":3}`)},
		2: {Key: volumeKey, Value: []byte(`{"volume":{"id":"db"},"later":7}`)}, 3: {Key: useKey, Value: []byte(`{"generation":2}`)},
		4: {Key: callKey, Value: []byte(`{"executor":"b"}`)}, 5: {Key: externalKey, Value: []byte(`{"volume":"db"}`)},
		6: {Key: questionKey, Value: []byte(`{"id":"q"}`)}, 7: {Key: holdKey, Value: []byte(`{"operation":"op"}`)},
		8: {Key: userKey, Value: []byte(`{}`)},
	}
	for i, kv := range values {
		kv.Create, kv.Mod = 1, int64(i)+1
		reads[i] = []KV{kv}
	}
	p, err := ParsePlace("a", v, reads)
	got := []any{p.Node.Value.Incarnation, p.Volume.Value.Volume.ID, p.Use.Value.Generation, p.Call.Value.Executor, p.External.Value.Volume, p.Question.Value.ID, p.Hold.Value.Operation, len(p.Users)}
	if wanted := []any{uint64(3), "db", uint64(2), "b", "db", "q", "op", 1}; err != nil || !slices.Equal(got, wanted) {
		t.Errorf("got %v, %v", got, err)
	}
	if op := p.put(p.Volume.Value); !strings.Contains(string(op.Value), `"later":7`) {
		t.Errorf("a field of a newer release is lost: %s", op.Value)
	}

	if _, err := ParsePlace("a", v, reads[1:]); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("a missing read: %v", err)
	}
	for i := range slices.Sorted(maps.Keys(values)) {
		bad := slices.Clone(reads)
		bad[i] = []KV{{Key: reads[i][0].Key, Value: []byte("[]"), Mod: 1}}
		if _, err := ParsePlace("a", v, bad); err == nil || !strings.Contains(err.Error(), reads[i][0].Key) {
			t.Errorf("foreign data under %s: %v", reads[i][0].Key, err)
		}
	}
}
