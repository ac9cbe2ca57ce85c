package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// mostHosts is the largest number of hosts in a history.
const mostHosts = 8

// request is one operation of a client on one volume.
type request struct {
	kind   string // one of the request kinds
	volume string
	host   int
	alloc  string
	access string
	reader bool
}

// These are the kinds of requests. A claim that does not succeed has two entries in the history. The
// first one ends with the answer. From then on, the host may have a hold for the claim. The second
// one, kindCleanUp, ends when the host has proved that the claim is gone.
const (
	kindClaim   = "claim"
	kindDetach  = "detach"
	kindCleanUp = "clean up"
	kindStatus  = "status"
	kindRestore = "restore" // etcd goes back to an older backup, so that holds of each host may come back
)

// answer is the result of a request, as its client saw it.
type answer struct {
	done    bool      // the request succeeded; otherwise it was refused, or its answer was lost
	keeps   bool      // the hold may outlive a detach, because etcd was not reachable meanwhile
	holders []int     // a refusal names these hosts as users of the volume
	seen    []sighted // the holds that a status shows
	text    string
}

// sighted is a hold in the answer to a status request.
type sighted struct {
	host   int
	access string
	reader bool
}

// holding is the hold of one host in the model. A host surely has a hold while it has claims. It may
// have one while a claim is pending or after an outage.
type holding struct {
	claims  string // the allocs with a mounted claim, in ascending order
	pending int    // claims without success that may still exist
	kept    bool   // the host kept a hold without claims during an outage

	access  string
	reader  bool
	unclear bool // reader is not known, because the host may have kept a hold of an earlier claim
}

// holdings are the holds of all hosts on one volume. They are the state of the model.
type holdings [mostHosts]holding

func (h holding) sure() bool     { return h.claims != "" }
func (h holding) possible() bool { return h.sure() || h.pending > 0 || h.kept }

// excludes reports whether the hold excludes a hold of another host.
func (h holding) excludes(access string, reader bool) bool {
	switch {
	case h.access != access, strings.HasPrefix(access, "single-node"):
		return true
	case access == "multi-node-single-writer":
		return !h.reader && !reader
	default:
		return false
	}
}

// claimed returns the hold after a claim that succeeded.
func (h holding) claimed(q request) (now holding, ok bool) {
	if !h.sure() {
		h.access, h.reader, h.unclear = q.access, q.reader, h.possible() || q.reader
	}
	if h.access != q.access || h.reader && !q.reader && !h.unclear {
		return h, false
	}
	h.reader = h.reader && q.reader
	h.claims = strings.Join(slices.Sorted(slices.Values(append(strings.Fields(h.claims), q.alloc))), " ")
	return h, true
}

// detached returns the hold after a claim was detached.
func (h holding) detached(q request, a answer) (now holding, ok bool) {
	allocs := strings.Fields(h.claims)
	i := slices.Index(allocs, q.alloc)
	if i < 0 {
		return h, false
	}
	h.claims = strings.Join(slices.Delete(allocs, i, i+1), " ")
	h.kept = h.kept || a.keeps
	if !h.sure() {
		h.access, h.reader, h.unclear = "", false, false
		h.kept = a.keeps || h.kept && h.pending > 0
	}
	return h, true
}

// step applies one request to the state of a volume. The result ok is false if the request cannot have
// the answer in this state.
func (s holdings) step(q request, a answer) (ok bool, now holdings) {
	own := &s[q.host]
	switch {
	case q.kind == kindStatus:
		return s.shown(a), s
	case q.kind == kindRestore:
		for host := range s {
			s[host].kept = true
		}
		return true, s
	case q.kind == kindDetach:
		*own, ok = own.detached(q, a)
		return ok, s
	case q.kind == kindCleanUp:
		own.pending--
		own.kept = own.kept || a.keeps
		return true, s
	case !a.done:
		// The refusal has the reason of the host's last try, which another pending claim may have caused.
		missing := func(host int) bool { return own.pending == 0 && !s[host].possible() }
		ok = !slices.ContainsFunc(a.holders, missing)
		own.pending++
		return ok, s
	}

	for host, other := range s {
		if host != q.host && other.sure() && other.excludes(q.access, q.reader) {
			return false, s
		}
	}
	*own, ok = own.claimed(q)
	for host := range s {
		if host != q.host && s[host].kept && strings.HasPrefix(q.access, "single-node") {
			s[host].kept = false
		}
	}
	return ok, s
}

// shown reports whether a status can show its holds in this state.
func (s holdings) shown(a answer) bool {
	for host, h := range s {
		i := slices.IndexFunc(a.seen, func(g sighted) bool { return g.host == host })
		switch {
		case i < 0 && h.sure(), i >= 0 && !h.possible():
			return false
		case i < 0 || !h.sure():
			continue
		}
		if g := a.seen[i]; g.access != h.access || g.reader != h.reader && !h.unclear {
			return false
		}
	}
	return true
}

// holdModel returns the model of holds for porcupine. Each volume is a history of its own.
func holdModel() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
			at := map[string]int{}
			for _, o := range history {
				id := o.Input.(request).volume
				if _, ok := at[id]; !ok {
					at[id], parts = len(parts), append(parts, nil)
				}
				parts[at[id]] = append(parts[at[id]], o)
			}
			return parts
		},
		Init: func() any { return holdings{} },
		Step: func(state, input, output any) (bool, any) {
			return state.(holdings).step(input.(request), output.(answer))
		},
		DescribeOperation: func(input, output any) string {
			q, a := input.(request), output.(answer)
			return fmt.Sprintf("%s %s h%d %s %s reader=%t: done=%t keeps=%t holders=%v seen=%v %s",
				q.kind, q.volume, q.host+1, q.alloc, q.access, q.reader, a.done, a.keeps, a.holders, a.seen, a.text)
		},
	}
}

// TestHoldModel checks that the model accepts histories of a correct cluster, and rejects histories
// that break a promise.
func TestHoldModel(t *testing.T) {
	t.Parallel()
	claim := func(host int, alloc, access string) request {
		return request{kind: kindClaim, volume: "v", host: host, alloc: alloc, access: access}
	}
	reader := func(host int, alloc string) request {
		q := claim(host, alloc, "multi-node-single-writer")
		q.reader = true
		return q
	}
	detach := func(host int, alloc string) request {
		return request{kind: kindDetach, volume: "v", host: host, alloc: alloc}
	}
	status := request{kind: kindStatus, volume: "v"}
	restore := request{kind: kindRestore, volume: "v"}
	done := answer{done: true}
	const one, mixed = "single-node-multi-writer", "multi-node-single-writer"
	type entry struct {
		request
		answer
	}
	for name, c := range map[string]struct {
		legal   bool
		entries []entry
	}{
		"a volume moves":  {true, []entry{{claim(0, "a", one), done}, {detach(0, "a"), done}, {claim(1, "b", one), done}}},
		"two hosts":       {false, []entry{{claim(0, "a", one), done}, {claim(1, "b", one), done}}},
		"two claims":      {true, []entry{{claim(0, "a", one), done}, {claim(0, "b", one), done}, {detach(0, "a"), done}, {detach(0, "b"), done}}},
		"one of two":      {false, []entry{{claim(0, "a", one), done}, {claim(0, "b", one), done}, {detach(0, "a"), done}, {claim(1, "c", one), done}}},
		"two modes":       {false, []entry{{claim(0, "a", mixed), done}, {claim(1, "b", "multi-node-multi-writer"), done}}},
		"two writers":     {false, []entry{{claim(0, "a", mixed), done}, {claim(1, "b", mixed), done}}},
		"reader, writer":  {true, []entry{{reader(0, "a"), done}, {claim(1, "b", mixed), done}, {reader(2, "c"), done}}},
		"detach twice":    {false, []entry{{claim(0, "a", one), done}, {detach(0, "a"), done}, {detach(0, "a"), done}}},
		"refused":         {true, []entry{{claim(0, "a", one), done}, {claim(1, "b", one), answer{holders: []int{0}}}}},
		"no reason":       {false, []entry{{claim(0, "a", one), done}, {detach(0, "a"), done}, {claim(1, "b", one), answer{holders: []int{0}}}}},
		"earlier reason":  {true, []entry{{claim(0, "a", one), done}, {claim(1, "b", one), answer{holders: []int{0}}}, {detach(0, "a"), done}, {claim(1, "c", one), answer{holders: []int{0}}}}},
		"kept":            {true, []entry{{claim(0, "a", one), done}, {detach(0, "a"), answer{done: true, keeps: true}}, {claim(1, "b", one), answer{holders: []int{0}}}}},
		"shown":           {true, []entry{{claim(0, "a", one), done}, {status, answer{done: true, seen: []sighted{{0, one, false}}}}}},
		"not shown":       {false, []entry{{claim(0, "a", one), done}, {status, done}}},
		"still shown":     {false, []entry{{claim(0, "a", one), done}, {detach(0, "a"), done}, {status, answer{done: true, seen: []sighted{{0, one, false}}}}}},
		"restored":        {true, []entry{{claim(0, "a", one), done}, {detach(0, "a"), done}, {restore, done}, {status, answer{done: true, seen: []sighted{{0, one, false}}}}, {claim(1, "b", one), done}}},
		"lost by restore": {false, []entry{{claim(0, "a", one), done}, {restore, done}, {status, done}}},
		"other mode":      {false, []entry{{claim(0, "a", one), done}, {status, answer{done: true, seen: []sighted{{0, mixed, false}}}}}},
	} {
		var history []porcupine.Operation
		for i, e := range c.entries {
			history = append(history, porcupine.Operation{Input: e.request, Output: e.answer, Call: int64(2 * i), Return: int64(2*i + 1)})
		}
		if legal := porcupine.CheckOperations(holdModel(), history); legal != c.legal {
			t.Errorf("%s: the model accepts the history: %t", name, legal)
		}
	}
}
