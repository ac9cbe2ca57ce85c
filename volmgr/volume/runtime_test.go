package volume_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestRuntimeOwner checks that the claim of a container runtime ends only by a detach, and that the
// detach needs force. The refusal of a detach must name the containers to stop.
func TestRuntimeOwner(t *testing.T) {
	o := volume.RuntimeVolume{Runtime: "docker", Name: "shop_data", VolumeID: "data"}.Owner()
	r := admit(t, offering(call.SingleNodeWriter), with(writer("docker"), owned(o)))
	view := volume.OwnerView{Life: volume.LifeRunning, References: 2}
	if got := o.Describe(view); got != "docker, 2 containers" {
		t.Errorf("it is described as %q", got)
	}
	err := volume.MayDetach("data", r.Claims["docker"], view, false)
	var e *volume.Error
	if !errors.Is(err, volume.ErrRefused) || !errors.As(err, &e) || !strings.Contains(e.Message, `owned by docker, 2 containers`) ||
		suggest.Hint(e.Remedy, e.Hint) != "stop its containers (docker ps --filter volume=shop_data), or unmount under them: volctl volume detach data docker --force" {
		t.Errorf("a detach: %v, hint %q", err, suggest.Hint(e.Remedy, e.Hint))
	}
	if err := volume.MayDetach("data", r.Claims["docker"], view, true); err != nil {
		t.Errorf("with force: %v", err)
	}
}

// TestRuntimeReferences checks that each id counts as one reference, and that the options of the
// volume determine which claim a reference uses.
func TestRuntimeReferences(t *testing.T) {
	now := time.Unix(1, 0)
	shared := volume.RuntimeVolume{Runtime: "docker", Name: "d", VolumeID: "d"}
	one := shared.Mounting("a", "", now)
	two := one.Mounting("b", "", now).Mounting("a", "", now.Add(time.Hour))
	if len(shared.Refs) != 0 || len(one.Refs) != 1 || len(two.Refs) != 2 {
		t.Errorf("references: %v, %v, %v", shared.Refs, one.Refs, two.Refs)
	}
	if r, ok := two.Ref("a"); !ok || r.Alloc != "docker" || !r.Since.Equal(now) {
		t.Errorf("the first: %+v, %t", r, ok)
	}
	if r, _ := two.Ref("a"); r.More != 1 || r.Returned {
		t.Errorf("the first after a second Mount: %+v", r)
	}
	left := two.Without(func(r volume.RuntimeRef) bool { return r.ID == "a" })
	if !left.Claimed("docker") || left.Claimed("podman") || len(two.Refs) != 2 {
		t.Errorf("left: %+v of %+v", left.Refs, two.Refs)
	}
	if left = left.Without(func(volume.RuntimeRef) bool { return true }); left.Claimed("docker") {
		t.Errorf("left: %+v", left.Refs)
	}
	own := volume.RuntimeVolume{Runtime: "docker", Name: "d", VolumeID: "d", Exclusive: true}
	for _, id := range []string{"0123456789abXX", "0123456789abYY", "short", "a/b", strings.Repeat("é", 99)} {
		own = own.Mounting(id, "", now)
	}
	if err := own.Check(); err != nil {
		t.Error(err)
	}
	seen := map[string]bool{}
	for _, r := range own.Refs {
		if seen[r.Alloc] || !strings.HasPrefix(r.Alloc, "docker-") {
			t.Errorf("%q has the alloc %q", r.ID, r.Alloc)
		}
		seen[r.Alloc] = true
	}
	if own.Refs[0].Alloc != "docker-0123456789ab" || own.Refs[2].Alloc != "docker-short" {
		t.Errorf("allocs: %+v", own.Refs)
	}
}

// TestRuntimeCounts checks that Docker's Mount requests for one id are counted, because the same
// process sends one Unmount request for each of them. Podman's Mount requests must not be counted.
func TestRuntimeCounts(t *testing.T) {
	now := time.Unix(1, 0)
	v := volume.RuntimeVolume{Runtime: plugin.RuntimeDocker, Name: "d", VolumeID: "d"}
	is := func(what string, v volume.RuntimeVolume, more int, returned bool) {
		t.Helper()
		r, ok := v.Ref("a")
		if !ok || r.More != more || r.Returned != returned {
			t.Errorf("%s: %+v, %t; want %d more, returned %t", what, r, ok, more, returned)
		}
		if got := len(v.Unneeded()) == 1; got != returned {
			t.Errorf("%s: the allocs %q are not needed", what, v.Unneeded())
		}
		if got := len(v.Settled(nil).Refs) == 0; got != returned {
			t.Errorf("%s: settled, it is %+v", what, v.Settled(nil))
		}
	}
	twice := v.Mounting("a", "one", now).Mounting("a", "one", now)
	is("two Mounts", twice, 1, false)
	is("one given back", twice.Unmounting("a", "one"), 0, false)
	is("both given back", twice.Unmounting("a", "one").Unmounting("a", "one"), 0, true)
	is("mounted once more", twice.Unmounting("a", "one").Unmounting("a", "one").Mounting("a", "one", now), 0, false)
	is("another one given back", twice.Unmounting("b", "one"), 1, false)
	is("mounted by the next process", twice.Mounting("a", "two", now), 0, false)
	is("given back by the next process", twice.Unmounting("a", "two"), 0, true)
	is("mounted by an unknown process", twice.Mounting("a", "", now), 2, false)
	is("given up", twice.Returning(func(r volume.RuntimeRef) bool { return r.ID == "a" }), 0, true)
	is("the original", twice, 1, false)
	v.Runtime = plugin.RuntimePodman
	is("podman's", v.Mounting("a", "one", now).Mounting("a", "two", now), 0, false)

	// A reference that is kept also keeps its claim. Another reference to the same claim also keeps
	// the claim.
	back := twice.Unmounting("a", "two")
	if got := back.Settled([]string{plugin.RuntimeDocker}); len(got.Refs) != 1 {
		t.Errorf("kept: %+v", got)
	}
	if got := back.Mounting("b", "two", now); len(got.Unneeded()) != 0 || len(got.Settled(nil).Refs) != 1 {
		t.Errorf("beside another one: %+v", got)
	}
	if err := (volume.RuntimeVolume{Runtime: plugin.RuntimeDocker, Name: "d", VolumeID: "d", Refs: []volume.RuntimeRef{{ID: "a", Alloc: "docker", More: -1}}}).Check(); err == nil {
		t.Error("a negative count was not refused")
	}
}
