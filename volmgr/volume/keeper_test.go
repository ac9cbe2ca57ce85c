package volume_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestKeeper checks the keeper of a claim whose owner is its mount, at each stage of the claim.
func TestKeeper(t *testing.T) {
	asker := volume.Owner{Kind: volume.OwnerMount, PID: 812, StartTime: 4711, Boot: "b"}
	pending := volume.Claim{Alloc: "a", Wanted: true, State: volume.Pending, Terms: volume.Terms{Owner: asker, At: "/srv/a b"}}
	bound := pending
	bound.Bound, bound.BoundMount = volume.Present, mountID(3)
	taken, anew, late := bound, bound, bound
	taken.State = volume.Mounted
	anew.State, anew.Bound, anew.BoundMount = volume.Mounted, volume.Unknown, nil
	late.Bound, late.BoundMount = volume.Failed, nil // a later bind failed before the claim was mounted
	for _, tt := range []struct {
		name             string
		c                volume.Claim
		process, byMount bool
		words, freedBy   string
	}{
		{"pending", pending, true, false, "pid 812 (rsync), which mounts /srv/a b", "end pid 812, or unmount under it: "},
		{"bound, not taken yet", bound, false, true, "the mount at /srv/a b", "volctl umount '/srv/a b'"},
		{"its bind failed", late, true, false, "pid 812 (rsync), which mounts /srv/a b", "end pid 812, or unmount under it: "},
		{"taken", taken, false, true, "the mount at /srv/a b", "volctl umount '/srv/a b'"},
		{"made anew", anew, false, false, "the mount at /srv/a b", "volctl volume detach data a --force"},
	} {
		k := tt.c.Keeper()
		if k.Process() != tt.process || k.ByMount() != tt.byMount || !k.Mortal() || k != tt.c.Keeper() {
			t.Errorf("%s: %+v", tt.name, k)
		}
		if got := k.Describe(volume.OwnerView{Command: "rsync"}); got != tt.words {
			t.Errorf("%s: it is %q, want %q", tt.name, got, tt.words)
		}
		err := volume.MayDetach("data", tt.c, volume.OwnerView{Life: volume.LifeRunning}, false)
		var e *volume.Error
		if !errors.As(err, &e) || !strings.HasPrefix(suggest.Hint(e.Remedy, e.Hint), tt.freedBy) {
			t.Errorf("%s: a detach: %v, hint %q", tt.name, err, suggest.Hint(e.Remedy, e.Hint))
		}
	}
	if plain := (volume.Claim{Terms: volume.Terms{Owner: process, At: "/srv"}, Bound: volume.Present, BoundMount: mountID(3)}); plain.Keeper() != process {
		t.Errorf("another owner is kept by %+v", plain.Keeper())
	}
}

// TestMountAgain checks that any process may repeat a request for an existing mount, and gets the
// same claim. While the claim is pending, only the process that made the first request may repeat
// it.
func TestMountAgain(t *testing.T) {
	ask := func(pid int, flags string) volume.Request {
		return with(writer("a"), func(q *volume.Request) {
			q.At, q.AtFlags, q.Owner = "/srv", flags, volume.Owner{Kind: volume.OwnerMount, PID: pid}
		})
	}
	r := admit(t, offering(call.SingleNodeWriter), ask(1, "nosuid"))
	again := func(q volume.Request) string {
		if _, err := volume.Admit(r, q, plugin.Info{}, now); err != nil {
			return err.Error()
		}
		return ""
	}
	for _, tt := range []struct {
		state volume.ClaimState
		q     volume.Request
		want  string
	}{
		{volume.Pending, ask(1, "nosuid"), ""},
		{volume.Pending, ask(2, "nosuid"), "with another owner"},
		{volume.Mounted, ask(2, "nosuid"), ""},
		{volume.Mounted, ask(2, "nodev"), "with another list of mount options at /srv"},
		{volume.Mounted, with(ask(2, "nosuid"), owned(process)), "with another owner"},
	} {
		edit(&r, func(c *volume.Claim) { c.State = tt.state })
		if got := again(tt.q); !strings.HasSuffix(got, tt.want) || got == "" != (tt.want == "") {
			t.Errorf("%s, by %+v %s: %q, want %q", tt.state, tt.q.Owner, tt.q.AtFlags, got, tt.want)
		}
	}
}

func TestAtFlags(t *testing.T) {
	for _, tt := range []struct {
		flags []string
		want  string
		bad   string
	}{
		{nil, "", ""},
		{[]string{"noexec", "nosuid", "noexec"}, "nosuid,noexec", ""},
		{[]string{"strictatime", "nodiratime"}, "nodiratime,strictatime", ""},
		{[]string{"ro"}, "", `unknown option "ro"`},
		{[]string{"noatime", "relatime"}, "", "noatime, relatime"},
	} {
		got, err := volume.AtFlags(tt.flags)
		if got != tt.want || (err == nil) != (tt.bad == "") || err != nil && (!errors.Is(err, volume.ErrInvalid) || !strings.Contains(err.Error(), tt.bad)) {
			t.Errorf("%v: %q, %v", tt.flags, got, err)
		}
		if flags := (volume.Claim{Terms: volume.Terms{AtFlags: got}}).Flags(); err == nil && strings.Join(flags, ",") != got {
			t.Errorf("%v: again %v", tt.flags, flags)
		}
	}
}

// TestGuards checks that a record contains the intent to guard a directory exactly once.
func TestGuards(t *testing.T) {
	r := offering(call.SingleNodeMultiWriter)
	for i, q := range []volume.Request{
		with(writer("a"), func(q *volume.Request) { q.At, q.Guard = "/srv/a", &volume.GuardedDir{Path: "/srv/a", Inode: 7} }),
		with(writer("b"), func(q *volume.Request) { q.At = "/srv/b" }),
		with(writer("c"), func(q *volume.Request) { q.At, q.Guard = "/srv/c", &volume.GuardedDir{Path: "/srv/c", Inode: 8} }),
	} {
		before := r.Guards
		r = admit(t, r, q)
		if i == 0 && len(before) != 0 {
			t.Errorf("guarded before: %v", before)
		}
	}
	r, err := volume.Detach(r, "a")
	if err != nil {
		t.Fatal(err)
	}
	r, _ = volume.Apply(r, volume.Action{Kind: volume.Free, Alloc: "a"}, volume.Outcome{})
	r = admit(t, r, with(writer("a"), func(q *volume.Request) { q.At, q.Guard = "/srv/a", &volume.GuardedDir{Path: "/srv/a", Inode: 7} }))
	if want := []string{"/srv/a", "/srv/c"}; !slices.Equal(r.Guards, want) {
		t.Errorf("guarded are %v, want %v", r.Guards, want)
	}
}
