package volume_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// offering returns the record of a volume without claims that supports the given access modes.
func offering(modes ...call.AccessMode) volume.Record {
	r := volume.Record{Volume: volume.Volume{ID: "data", PluginID: "p"}}
	for _, m := range modes {
		r.Volume.Capabilities = append(r.Volume.Capabilities, call.Capability{Access: m, Attachment: call.FileSystem})
	}
	return r
}

func reader(alloc string) volume.Request {
	return volume.Request{Alloc: alloc, Terms: volume.Terms{ReadOnly: true, Owner: volume.Owner{Kind: volume.OwnerNone}}, StagingPath: "/s", Target: "/t/" + alloc}
}

func writer(alloc string) volume.Request {
	q := reader(alloc)
	q.ReadOnly = false
	return q
}

// admit adds the requested claim to the record. It fails the test if Admit refuses the claim.
func admit(t *testing.T, r volume.Record, q volume.Request) volume.Record {
	t.Helper()
	next, err := volume.Admit(r, q, plugin.Info{}, now)
	if err != nil {
		t.Fatalf("claim of %q: %v", q.Alloc, err)
	}
	return next
}

// in returns a record in the given mode with the given numbers of readers and writers. It does not
// call Admit, because Admit refuses some of the tested combinations.
func in(mode call.AccessMode, readers, writers int) volume.Record {
	r := offering(mode)
	if readers+writers == 0 {
		return r
	}
	r.Node.Mode = &volume.Mode{Capability: r.Volume.Capabilities[0]}
	r.Claims = map[string]volume.Claim{}
	for i := range readers + writers {
		alloc := fmt.Sprintf("holder-%d", i)
		r.Claims[alloc] = volume.Claim{
			Alloc: alloc, Seq: uint64(i + 1), Wanted: true, State: volume.Mounted,
			Terms: volume.Terms{ReadOnly: i < readers, Mode: r.Volume.Capabilities[0]}, Since: now.Add(-time.Hour),
		}
	}
	return r
}

// TestAccessMatrix checks, for each combination of existing claims, which new claims Admit permits.
func TestAccessMatrix(t *testing.T) {
	type claims struct{ readers, writers int }
	none, oneR, oneW, both := claims{0, 0}, claims{1, 0}, claims{0, 1}, claims{1, 1}
	for _, tt := range []struct {
		mode  call.AccessMode
		with  claims
		read  bool
		write bool
	}{
		{call.SingleNodeReaderOnly, none, true, false},
		{call.SingleNodeReaderOnly, oneR, false, false},
		{call.SingleNodeWriter, none, true, true},
		{call.SingleNodeWriter, oneR, false, false},
		{call.SingleNodeWriter, oneW, false, false},
		{call.SingleNodeSingleWriter, none, true, true},
		{call.SingleNodeSingleWriter, oneR, false, false},
		{call.SingleNodeSingleWriter, oneW, false, false},
		{call.SingleNodeMultiWriter, none, true, true},
		{call.SingleNodeMultiWriter, oneR, true, true},
		{call.SingleNodeMultiWriter, oneW, true, true},
		{call.SingleNodeMultiWriter, both, true, true},
		{call.MultiNodeReaderOnly, none, true, false},
		{call.MultiNodeReaderOnly, oneR, true, false},
		{call.MultiNodeSingleWriter, none, true, true},
		{call.MultiNodeSingleWriter, oneR, true, true},
		{call.MultiNodeSingleWriter, oneW, true, false},
		{call.MultiNodeSingleWriter, both, true, false},
		{call.MultiNodeMultiWriter, none, true, true},
		{call.MultiNodeMultiWriter, oneR, true, true},
		{call.MultiNodeMultiWriter, oneW, true, true},
		{call.MultiNodeMultiWriter, both, true, true},
	} {
		r := in(tt.mode, tt.with.readers, tt.with.writers)
		for what, q := range map[string]volume.Request{"read": reader("new"), "write": writer("new")} {
			want := tt.read
			if what == "write" {
				want = tt.write
			}
			next, err := volume.Admit(r, q, plugin.Info{}, now)
			if (err == nil) != want {
				t.Errorf("%s with %+v: %s claim: %v, want admitted: %t", tt.mode, tt.with, what, err, want)
			}
			if err != nil && (!errors.Is(err, volume.ErrRefused) || errors.Is(err, volume.ErrDetaching)) {
				t.Errorf("%s with %+v: %s claim: the refusal is of kind %v", tt.mode, tt.with, what, errors.Unwrap(err))
			}
			if _, there := next.Claims["new"]; there != want {
				t.Errorf("%s with %+v: %s claim: recorded: %t, want %t", tt.mode, tt.with, what, there, want)
			}
		}
	}
}

// TestRefusalWording checks that a refusal names the conflicting claims that are being detached.
// Such claims still conflict.
func TestRefusalWording(t *testing.T) {
	held := in(call.SingleNodeWriter, 0, 1)
	dying, err := volume.Detach(held, "holder-0")
	if err != nil {
		t.Fatal(err)
	}
	mixed := in(call.SingleNodeWriter, 1, 1)
	mixed, err = volume.Detach(mixed, "holder-0")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		r       volume.Record
		q       volume.Request
		waits   bool
		message string
		hint    string
	}{
		{"live", held, writer("new"), false,
			`volume "data" is in use in mode single-node-writer by "holder-0" (mounted, for 1h0m0s)`, "volctl volume detach data holder-0"},
		{"dying", dying, writer("new"), true,
			`volume "data" is in use in mode single-node-writer by "holder-0" (being detached: unpublishing)`, "volctl volume status data"},
		{"one of each", mixed, writer("new"), false,
			`volume "data" is in use in mode single-node-writer by "holder-0" (being detached: unpublishing), "holder-1" (mounted, for 1h0m0s)`,
			"volctl volume detach data holder-1"},
		{"own earlier one", dying, writer("holder-0"), true,
			`the earlier claim of "holder-0" on volume "data" is still being detached (unpublishing)`, "volctl volume status data"},
		{"write in a mode nobody writes in", in(call.MultiNodeReaderOnly, 1, 0), writer("new"), false,
			`volume "data" is claimed in mode multi-node-reader-only, which does not permit writing`, ""},
	} {
		_, err := volume.Admit(tt.r, tt.q, plugin.Info{}, now)
		var e *volume.Error
		if !errors.As(err, &e) || e.Message != tt.message || suggest.Hint(e.Remedy, e.Hint) != tt.hint {
			t.Errorf("%s:\n got %v\nhint %q\nwant %s\nhint %q", tt.name, err, hintOf(err), tt.message, tt.hint)
		}
		if volume.IsDetaching(err) != tt.waits || !errors.Is(err, volume.ErrRefused) {
			t.Errorf("%s: waiting helps: %t, want %t; is a refusal: %t", tt.name, volume.IsDetaching(err), tt.waits, errors.Is(err, volume.ErrRefused))
		}
	}
}

func hintOf(err error) string {
	var e *volume.Error
	if errors.As(err, &e) {
		return suggest.Hint(e.Remedy, e.Hint)
	}
	return ""
}

func TestChooseMode(t *testing.T) {
	block := call.Capability{Access: call.SingleNodeWriter, Attachment: call.BlockDevice}
	free := offering(call.MultiNodeReaderOnly, call.SingleNodeWriter, call.SingleNodeMultiWriter)
	free.Volume.Capabilities = append(free.Volume.Capabilities, block)
	held := admit(t, free, with(writer("w"), func(q *volume.Request) { q.Mode.Access = call.SingleNodeMultiWriter }))
	for _, tt := range []struct {
		name string
		r    volume.Record
		ask  func(*volume.Request)
		want call.Capability
		bad  string
	}{
		{"a writer takes the first mode that may write", free, func(*volume.Request) {}, free.Volume.Capabilities[1], ""},
		{"a reader takes the first of all", free, func(q *volume.Request) { q.ReadOnly = true }, free.Volume.Capabilities[0], ""},
		{"a named mode", free, func(q *volume.Request) { q.Mode.Access = call.SingleNodeMultiWriter }, free.Volume.Capabilities[2], ""},
		{"a named attachment", free, func(q *volume.Request) { q.Mode.Attachment = call.BlockDevice }, block, ""},
		{"a mode that is not listed", free, func(q *volume.Request) { q.Mode.Access = call.MultiNodeMultiWriter }, call.Capability{},
			`volume "data" has no capability for a writer in mode multi-node-multi-writer; it lists multi-node-reader-only/file-system, single-node-writer/file-system, single-node-multi-writer/file-system, single-node-writer/block-device`},
		{"a writer in a readers' mode", free, func(q *volume.Request) { q.Mode.Access = call.MultiNodeReaderOnly }, call.Capability{}, "has no capability for a writer in mode multi-node-reader-only"},
		{"the mode in force", held, func(*volume.Request) {}, free.Volume.Capabilities[2], ""},
		{"another mode while held", held, func(q *volume.Request) { q.Mode.Access = call.SingleNodeWriter }, call.Capability{}, "is claimed in mode single-node-multi-writer; single-node-writer must wait until it is free"},
		{"another attachment while held", held, func(q *volume.Request) { q.Mode.Attachment = call.BlockDevice }, call.Capability{}, "is claimed as file-system; it cannot be a block-device at the same time"},
		{"other mount flags while held", held, func(q *volume.Request) { q.MountFlags = []string{"noatime"} }, call.Capability{}, "is mounted with the flags [] of its first claim"},
	} {
		next, err := volume.Admit(tt.r, with(writer("new"), tt.ask), plugin.Info{}, now)
		switch {
		case tt.bad == "" && (err != nil || next.Claims["new"].Mode != tt.want):
			t.Errorf("%s: got %v, %v, want %v", tt.name, next.Claims["new"].Mode, err, tt.want)
		case tt.bad != "" && (!errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), tt.bad)):
			t.Errorf("%s: got %v, want a refusal with %q", tt.name, err, tt.bad)
		}
	}
}

func with(q volume.Request, change func(*volume.Request)) volume.Request {
	change(&q)
	return q
}

// TestModeInForce checks that the first claim sets the mode that all claims share, and that the end
// of the last claim clears this mode.
func TestModeInForce(t *testing.T) {
	r := offering(call.SingleNodeMultiWriter)
	r.Volume.MountOptions = call.MountOptions{FSType: "xfs", MountFlags: []string{"noatime"}}
	info := plugin.Info{NodeID: "node-1", Caps: plugin.Caps{Attach: true, Stage: true}}
	r, err := volume.Admit(r, with(writer("a"), func(q *volume.Request) { q.MountFlags = []string{"nodev"} }), info, now)
	if err != nil {
		t.Fatal(err)
	}
	want := &volume.Mode{Capability: r.Volume.Capabilities[0], FSType: "xfs", MountFlags: []string{"nodev"}}
	if !reflect.DeepEqual(r.Node.Mode, want) || r.Node.StagingPath != "/s" || r.Node.NodeID != "node-1" || !r.Node.Uses.Attach || !r.Node.Uses.Stage {
		t.Errorf("after the first claim: %+v, mode %+v, want %+v", r.Node, r.Node.Mode, want)
	}
	other := with(writer("b"), func(q *volume.Request) { q.StagingPath = "/elsewhere" })
	if r = admit(t, r, other); r.Node.StagingPath != "/s" || r.Claims["a"].Seq >= r.Claims["b"].Seq {
		t.Errorf("after the second claim: %+v", r)
	}
	for _, alloc := range []string{"a", "b"} {
		if r, err = volume.Detach(r, alloc); err != nil {
			t.Fatal(err)
		}
		r, _ = volume.Apply(r, volume.Action{Kind: volume.Free, Alloc: alloc}, volume.Outcome{})
	}
	if len(r.Claims) != 0 || r.Node.Mode != nil || r.Held() {
		t.Errorf("after the last release: %+v", r)
	}
}

// TestAdmitAgain checks that a repeated request with the same terms succeeds and changes nothing.
func TestAdmitAgain(t *testing.T) {
	ask := with(writer("a"), func(q *volume.Request) { q.At = "/srv"; q.MountFlags = []string{"nodev"} })
	r := admit(t, offering(call.SingleNodeWriter), ask)
	for name, change := range map[string]func(*volume.Request){
		"as before":        func(*volume.Request) {},
		"flags left out":   func(q *volume.Request) { q.MountFlags = nil },
		"modes spelt out":  func(q *volume.Request) { q.Mode.Access, q.Mode.Attachment = call.SingleNodeWriter, call.FileSystem },
		"new paths for it": func(q *volume.Request) { q.Target, q.StagingPath = "/new/t", "/new/s" },
	} {
		if next, err := volume.Admit(r, with(ask, change), plugin.Info{}, now.Add(time.Hour)); err != nil || !reflect.DeepEqual(next, r) {
			t.Errorf("%s: %v, and the record became %+v", name, err, next)
		}
	}
	for word, change := range map[string]func(*volume.Request){
		"read-only":       func(q *volume.Request) { q.ReadOnly = true },
		"access mode":     func(q *volume.Request) { q.Mode.Access = call.MultiNodeMultiWriter },
		"attachment mode": func(q *volume.Request) { q.Mode.Attachment = call.BlockDevice },
		"mount flags":     func(q *volume.Request) { q.MountFlags = []string{"exec"} },
		"directory":       func(q *volume.Request) { q.At = "" },
		"owner":           func(q *volume.Request) { q.Owner.Kind = "unit" },

		"write protection of the directory": func(q *volume.Request) { q.AtWritable = true },
	} {
		_, err := volume.Admit(r, with(ask, change), plugin.Info{}, now)
		want := fmt.Sprintf(`"a" already has a claim on volume "data", with another %s`, word)
		if err == nil || err.Error() != want || !errors.Is(err, volume.ErrRefused) || hintOf(err) != "volctl volume detach data a" {
			t.Errorf("another %s: %v (hint %q), want %s", word, err, hintOf(err), want)
		}
	}
}

func TestAdmitRefusesWhatIsNotReady(t *testing.T) {
	creating, foreign, taken := offering(call.SingleNodeMultiWriter), in(call.SingleNodeMultiWriter, 0, 1), offering(call.SingleNodeMultiWriter)
	creating.Volume.Provision = volume.Provisioning
	foreign.Node.Staged = "half-staged"
	taken = admit(t, taken, with(writer("a"), func(q *volume.Request) { q.At = "/srv" }))
	for words, r := range map[string]volume.Record{
		"creating did not end":                    creating,
		`staged has the unknown state "half-st`:   foreign,
		`/srv is taken by the claim of "a" on th`: taken,
	} {
		next, err := volume.Admit(r, with(writer("new"), func(q *volume.Request) { q.At = "/srv" }), plugin.Info{}, now)
		if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), words) || !reflect.DeepEqual(next, r) {
			t.Errorf("got %v, want a refusal with %q and the record as it was", err, words)
		}
	}
}

// TestRecordsAreValues checks that Admit and Detach return new records and do not change the old
// record.
func TestRecordsAreValues(t *testing.T) {
	old := admit(t, offering(call.SingleNodeMultiWriter), writer("a"))
	claims := maps.Clone(old.Claims)
	admit(t, old, writer("b"))
	if _, err := volume.Detach(old, "a"); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(old.Claims, claims) {
		t.Errorf("the old record became %+v", old.Claims)
	}
}

func TestRelease(t *testing.T) {
	r := admit(t, offering(call.SingleNodeWriter), writer("a"))
	once, err := volume.Detach(r, "a")
	if c := once.Claims["a"]; err != nil || c.Wanted || c.State != volume.Unpublishing || c.Mode != r.Claims["a"].Mode {
		t.Errorf("released: %+v, %v", c, err)
	}
	twice, err := volume.Detach(once, "a")
	if err != nil || !reflect.DeepEqual(once, twice) {
		t.Errorf("released again: %+v, %v", twice, err)
	}
	if _, err := volume.Detach(r, "b"); !errors.Is(err, volume.ErrNotFound) || !strings.Contains(err.Error(), `"b" has no claim on volume "data"`) {
		t.Errorf("release of no claim: %v", err)
	}
}
