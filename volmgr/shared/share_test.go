package shared

import (
	"slices"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestShare checks the decisions to share a volume of one host, and to take it back.
func TestShare(t *testing.T) {
	v := volume.Volume{ID: "db", Driver: "d", ExternalID: "x"}
	ask := func(p Place) (Txn, error) { return p.Ask(hostA, Question{ID: "q", Node: "a", ExternalID: "x"}, 5) }
	end := func(p Place) (Txn, error) { return p.EndQuestion("q"), nil }
	share := func(h *Hold, question string) func(Place) (Txn, error) {
		return func(p Place) (Txn, error) { return p.Share(hostA, v, h, question) }
	}
	unshare := func(operation string) func(Place) (Txn, error) {
		return func(p Place) (Txn, error) { return p.Unshare(hostA, operation) }
	}
	single := &Hold{Operation: "op", Access: call.SingleNodeWriter, Since: time.Unix(9, 0)}
	multi := &Hold{Operation: "op", Access: call.MultiNodeMultiWriter}
	detaching := func(p *Place) { p.Hold.Value.Attachment = Detaching }
	growing := func(p *Place) { p.Volume.Value.Volume.Expansion.Want = 9 }
	shared := []string{"+" + volumeKey, "+" + useKey, "+" + externalKey}
	conditions := []string{volumeKey, useKey, callKey, holdKey, externalKey, questionKey}
	taking := []string{"-" + volumeKey, "-" + useKey, "-" + holdKey, "-" + userKey, "-" + noticeKey}
	alone := []string{volumeKey, useKey, holdKey, callKey, externalKey, Users("db").Key, userKey + "\x00"}

	for name, d := range map[string]decision{
		"ask":                      {do: ask, keys: "+" + questionKey, needs: []string{questionKey}},
		"ask again":                {state: with(asked("a", "p")), do: ask, keys: ops("+"+questionKey, "-"+Answers("p").Key), needs: []string{questionKey}},
		"ask beside another":       {state: with(asked("b", "p")), do: ask, kind: volume.ErrRefused, words: `host "b" is sharing external_id "x"`},
		"ask for a known id":       {state: with(defined), do: ask, kind: volume.ErrRefused, words: `the cluster already has a shared volume "db" with external_id "x"`},
		"ask for taken storage":    {state: with(taken), do: ask, kind: volume.ErrStorageTaken, words: `as volume "other"`},
		"ask, unregistered":        {state: with(unregistered), do: ask, kind: ErrUnregistered},
		"end of a question":        {state: with(asked("a", "q")), do: end, keys: ops("-"+questionKey, "-"+Answers("q").Key), needs: []string{questionKey}},
		"end of another question":  {state: with(asked("b", "p")), do: end, keys: ""},
		"end of no question":       {do: end, keys: ""},
		"share":                    {state: with(asked("a", "q")), do: share(nil, "q"), keys: ops(shared...), needs: conditions},
		"share by force":           {do: share(nil, ""), keys: ops(shared...), needs: conditions},
		"share while mounted":      {do: share(single, ""), keys: ops(append(slices.Clone(shared), "+"+holdKey)...), needs: conditions},
		"share beside others":      {do: share(multi, ""), keys: ops(append(slices.Clone(shared), "+"+holdKey, "+"+userKey)...), needs: conditions},
		"share without the answer": {do: share(nil, "q"), kind: volume.ErrRefused, words: "ended too early"},
		"share after another":      {state: with(asked("a", "p")), do: share(nil, "q"), kind: volume.ErrRefused, words: "ended too early"},
		"share a known id":         {state: with(defined), do: share(nil, ""), kind: volume.ErrRefused, words: "already has a shared volume"},
		"share taken storage":      {state: with(taken), do: share(nil, ""), kind: volume.ErrStorageTaken, words: `as volume "other"`},
		"share, unregistered":      {state: with(unregistered), do: share(nil, ""), kind: ErrUnregistered},

		"unshare":                   {state: with(defined), do: unshare(""), keys: ops(append(slices.Clone(taking), "-"+externalKey)...), needs: alone},
		"unshare while mounted":     {state: with(defined, usedBy("a")), do: unshare("op"), keys: ops(append(slices.Clone(taking), "-"+externalKey)...), needs: alone},
		"unshare as the only user":  {state: with(defined, readBy("a")), do: unshare(""), keys: ops(append(slices.Clone(taking), "-"+externalKey)...), needs: alone},
		"unshare foreign storage":   {state: with(defined, taken), do: unshare(""), keys: ops(taking...), needs: alone},
		"unshare in use":            {state: with(defined, usedBy("b")), do: unshare(""), kind: volume.ErrRefused, words: `host "b" uses volume "db" in mode single-node-writer`},
		"unshare beside another":    {state: with(defined, readBy("a", "b")), do: unshare(""), kind: volume.ErrRefused, words: `host "b" uses`},
		"unshare with another hold": {state: with(defined, usedBy("a")), do: unshare("new"), kind: volume.ErrRefused, words: "still giving up its hold"},
		"unshare while detached":    {state: with(defined, usedBy("a"), detaching), do: unshare("op"), kind: volume.ErrRefused, words: "is detaching on this host"},
		"unshare while deleted":     {state: with(defined, deleting), do: unshare(""), kind: volume.ErrRefused, words: "an earlier change"},
		"unshare while expanded":    {state: with(defined, growing), do: unshare(""), kind: volume.ErrRefused, words: "an earlier change"},
		"unshare beside a call":     {state: with(defined, calling("b", 1, "o")), do: unshare(""), kind: volume.ErrRefused, words: `host "b" is calling`},
		"unshare nothing":           {do: unshare(""), kind: volume.ErrNotFound},
		"unshare, unregistered":     {state: with(defined, unregistered), do: unshare(""), kind: ErrUnregistered},
	} {
		t.Run(name, d.check)
	}

	p := newPlace(asked("a", "q"))
	txn, err := p.Ask(hostA, Question{ID: "q"}, 5)
	if err != nil || txn.Then[0].Lease != 5 {
		t.Errorf("the question does not end with the lease of the host: %+v, %v", txn, err)
	}
}

// TestSharedUse checks that a hold from a share makes the host the holder in a single-node mode only.
func TestSharedUse(t *testing.T) {
	for mode, holder := range map[call.AccessMode]string{call.SingleNodeWriter: "a", call.MultiNodeSingleWriter: "a", call.MultiNodeMultiWriter: "", call.MultiNodeReaderOnly: ""} {
		txn, err := newPlace().Share(hostA, volume.Volume{ID: "db"}, &Hold{Operation: "op", Access: mode}, "")
		i := slices.IndexFunc(txn.Then, func(o Op) bool { return o.Key == useKey })
		if err != nil || i < 0 {
			t.Fatalf("%s: %+v, %v", mode, txn, err)
		}
		e, err := Decode[Use](KV{Key: useKey, Value: txn.Then[i].Value, Mod: 1})
		if err != nil || e.Value.Holder != holder || e.Value.Access != mode || e.Value.Generation != 1 {
			t.Errorf("%s: the use is %+v, %v", mode, e.Value, err)
		}
	}
}

// TestShared checks which hold an earlier share has made.
func TestShared(t *testing.T) {
	p := newPlace(defined, usedBy("a"))
	if token, ok := p.Shared("op"); !ok || token != (volume.Token{Epoch: 1, Revision: 1}) {
		t.Errorf("%+v, %t", token, ok)
	}
	if _, ok := p.Shared("other"); ok {
		t.Error("the hold of another operation counts")
	}
	if _, ok := newPlace().Shared("op"); ok {
		t.Error("a missing hold counts")
	}
}

// TestElsewhere checks when a host may use storage on its own.
func TestElsewhere(t *testing.T) {
	otherStorage := func(p *Place) { defined(p); p.External = Entry[Claimed]{} }
	for name, d := range map[string]decision{
		"free":                 {},
		"shared":               {state: with(taken), kind: volume.ErrStorageTaken, words: `as shared volume "other"`},
		"being shared":         {state: with(asked("b", "q")), kind: volume.ErrRefused, words: `host "b" is sharing`},
		"being shared by this": {state: with(asked("a", "q"))},
		"known id":             {state: with(otherStorage), kind: volume.ErrRefused, words: `has a shared volume "db"`},
	} {
		d.do = func(p Place) (Txn, error) { return Txn{}, p.Elsewhere(hostA) }
		t.Run(name, d.check)
	}
}
