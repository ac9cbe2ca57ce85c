package doctor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// member returns the data of a host without problems, whose only volume is shared.
func member() Picture {
	p, since := well(), now.Add(-time.Hour)
	own := volume.Token{Epoch: 1, Revision: 7}
	r := &p.Volumes[0].Record
	r.Volume.Shared = true
	r.Node.Hold = volume.Hold{State: volume.Present, Operation: "o", Token: own, Access: mode.Access, Since: since, Confirmed: true}
	p.Cluster = Cluster{
		Joined: true, Endpoints: "http://e",
		Holds: []shared.HoldView{{Volume: "data", Host: "h", Access: mode.Access, Operation: "o", Since: since, Token: own}},
	}
	return p
}

// TestClusterRules checks the findings about a cluster after a single change to a host without
// problems.
func TestClusterRules(t *testing.T) {
	free := func(p *Picture) {
		v := &p.Volumes[0]
		v.Record.Claims, v.Record.Node.Staged, v.Record.Node.Mount = nil, volume.Absent, nil
		v.Observed.Targets, v.Observed.Binds, v.Observed.Staging = nil, nil, volume.Sight{}
		p.Mounts = p.Mounts[:2]
	}
	announced := func(since time.Duration, state shared.HostState) func(*Picture) {
		return func(p *Picture) {
			p.Cluster.Calls = []OpenCall{{
				CallView: shared.CallView{Volume: "other", Call: shared.Call{Executor: "b", Call: call.ControllerPublish, Since: now.Add(-since)}}, State: state, Deadline: time.Minute,
			}}
		}
	}
	conflict := func(kind ConflictKind, other string) func(*Picture) {
		return func(p *Picture) { p.Cluster.Conflicts = []Conflict{{kind, "mine", other}} }
	}

	for name, c := range map[string]struct {
		spoil    func(p *Picture)
		id       string // of the expected finding; empty if none is expected
		severity Severity
		says     string // a text that the finding must contain
		fix      fixKind
	}{
		"well":         {func(*Picture) {}, "", "", "", ""},
		"unreachable":  {func(p *Picture) { p.Cluster.Away, p.Cluster.Since = "etcd at e: no answer", now.Add(-time.Minute) }, "cluster-unreachable:agent", Problem, "since 2026-03-10T02:59:00Z (for 1m0s): etcd at e: no answer", ""},
		"not read":     {func(p *Picture) { p.Cluster.Err, p.Cluster.Holds = errors.New("too slow"), nil }, "cluster-unreachable:agent", Warning, "too slow", ""},
		"no section":   {func(p *Picture) { p.Cluster = Cluster{} }, "cluster-unreachable:agent", Problem, "no section cluster", ""},
		"late watch":   {func(p *Picture) { p.Cluster.Lag = 11 * time.Second }, "cluster-watch-late:agent", Warning, "systemctl restart volagent.service", ""},
		"normal watch": {func(p *Picture) { p.Cluster.Lag = 9 * time.Second }, "", "", "", ""},

		"hold without use":      {free, "hold-unused:data", Warning, "has neither a claim nor a mount", wake},
		"new hold without use":  {func(p *Picture) { free(p); p.Cluster.Holds[0].Since = now.Add(-time.Second) }, "", "", "", ""},
		"moving without use":    {func(p *Picture) { free(p); p.Volumes[0].Moving = true }, "", "", "", ""},
		"hold without a record": {func(p *Picture) { free(p); p.Volumes = nil }, "hold-unused:data", Warning, "no record of this host explains", compare},
		"new, without a record": {func(p *Picture) { free(p); p.Volumes = nil; p.Cluster.Holds[0].Since = now }, "", "", "", ""},
		"hold of a deregistered volume": {func(p *Picture) {
			p.Deregistered = []Deregistered{{Record: p.Volumes[0].Record}}
			free(p)
			p.Volumes = nil
		}, "", "", "", ""},

		"mounts without a hold":   {func(p *Picture) { p.Cluster.Holds = nil }, "mount-without-hold:data", Problem, "and the cluster has none", compare},
		"mounts after a loss":     {func(p *Picture) { p.Volumes[0].Record.Node.Hold.Lost = true }, "mount-without-hold:data", Problem, "no longer shows its hold of 2026-03-10T02:00:00Z", compare},
		"mounts, hold unverified": {func(p *Picture) { p.Volumes[0].Record.Node.Hold.State = volume.Unknown }, "", "", "", ""},
		"stale token":             {func(p *Picture) { p.Cluster.Holds[0].Token.Revision = 9 }, "hold-token-stale:data", Problem, "token 1.7 for its hold on volume \"data\", and the cluster shows token 1.9", compare},
		"token before a restore":  {func(p *Picture) { p.Cluster.Holds[0].Token.Epoch = 2 }, "hold-token-stale:data", Problem, "etcd was restored", compare},

		"call in flight":    {announced(2*time.Minute, shared.HostReady), "", "", "", ""},
		"call without end":  {announced(time.Hour, shared.HostReady), "cluster-call-open:other", Warning, "host \"b\", which is ready, announced ControllerPublishVolume for volume \"other\" on 2026-03-10T02:00:00Z (for 1h0m0s)", ""},
		"executor gone":     {announced(time.Hour, shared.HostGone), "cluster-call-open:other", Warning, "volctl node status b", ""},
		"executor not read": {announced(time.Hour, ""), "cluster-call-open:other", Warning, "host \"b\" announced", ""},

		"keys":         {func(p *Picture) { p.Cluster.Contradictions = []string{"host b is odd"} }, "cluster-keys:host b is odd", Warning, "contradict each other: host b is odd", ""},
		"same id":      {conflict(SameID, "mine"), "volume-conflict:id/mine", Problem, "a shared volume with the same id", ""},
		"same storage": {conflict(SameStorage, "theirs"), "volume-conflict:storage/mine", Problem, "shared volume \"theirs\"", ""},
		"two holders":  {conflict(TwoHolders, "b"), "volume-conflict:holders/mine", Problem, "this host and host \"b\" both hold", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := member()
			c.spoil(&p)
			found := Judge(p)
			if c.id == "" {
				if len(found) > 0 {
					t.Errorf("found %+v", found)
				}
				return
			}

			i := slices.IndexFunc(found, func(f Finding) bool { return f.ID == c.id })
			if i < 0 {
				t.Fatalf("found %v, want %s", ids(found), c.id)
			}
			f := found[i]
			words := strings.Join([]string{f.What, f.Then, f.Do}, "\n")
			if f.Severity != c.severity || f.repair.kind != c.fix || !strings.Contains(words, c.says) {
				t.Errorf("a %s with the fix %q: %s\nwant a %s with the fix %q and %q", f.Severity, f.repair.kind, words, c.severity, c.fix, c.says)
			}
			if f.Then == "" || f.Do == "" {
				t.Errorf("a consequence or a command is missing: %+v", f)
			}
		})
	}
}

// TestClusterSettles changes a record while the cluster is read. The examination reports nothing,
// because the cluster may show a newer state than the record. The fix compares the holds again.
func TestClusterSettles(t *testing.T) {
	p := member()
	w := newWard()
	w.records["data"], w.cluster = p.Volumes[0].Record, p.Cluster
	w.cluster.Holds[0].Token.Revision = 9
	if found := w.doctor().Examine(t.Context()).Findings; len(found) != 1 || found[0].Kind != HoldStale {
		t.Fatalf("found %v", ids(found))
	}
	if done := w.doctor().Fix(t.Context(), []string{"hold-token-stale:data"}); len(done) != 1 || done[0].Outcome != Asked || w.compared != 1 {
		t.Errorf("fixed %+v; compared %d times", done, w.compared)
	}

	w.onCluster = func() {
		r := w.records["data"]
		r.Generation++
		w.records["data"] = r
	}
	if found := w.doctor().Examine(t.Context()).Findings; len(found) != 0 {
		t.Errorf("while the record changes: %v", ids(found))
	}

	w.cluster.Holds[0].Volume = "new"
	w.onCluster = func() {
		r := p.Volumes[0].Record
		r.Volume.ID = "new"
		w.records["new"] = r
	}
	if found := w.doctor().Examine(t.Context()).Findings; slices.Contains(ids(found), "hold-unused:new") {
		t.Errorf("while a record is added: %v", ids(found))
	}
}
