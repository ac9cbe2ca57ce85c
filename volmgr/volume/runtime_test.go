package volume_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// A runtime's claim is never past by itself, is not detached without force, and the
// refusal says which containers to stop.
func TestRuntimeOwner(t *testing.T) {
	o := volume.RuntimeVolume{Runtime: "docker", Name: "shop_data", VolumeID: "data"}.Owner()
	r := admit(t, offering(volume.SingleNodeWriter), with(writer("docker"), owned(o)))
	view := volume.OwnerView{Life: volume.LifeRunning, References: 2}
	if got := o.Describe(view); got != "docker, 2 containers" {
		t.Errorf("it is described as %q", got)
	}
	err := volume.MayDetach("data", r.Claims["docker"], view, false)
	var e *volume.Error
	if !errors.Is(err, volume.ErrRefused) || !errors.As(err, &e) || !strings.Contains(e.Message, `owned by docker, 2 containers`) ||
		e.Hint != "stop its containers (docker ps --filter volume=shop_data), or unmount under them: volctl volume detach data docker --force" {
		t.Errorf("a detach: %v, hint %q", err, e.Hint)
	}
	if err := volume.MayDetach("data", r.Claims["docker"], view, true); err != nil {
		t.Errorf("with force: %v", err)
	}
}

// References: an id counts once, and each has the claim that its volume's options say.
func TestRuntimeReferences(t *testing.T) {
	now := time.Unix(1, 0)
	shared := volume.RuntimeVolume{Runtime: "docker", Name: "d", VolumeID: "d"}
	one := shared.Referring("a", now)
	two := one.Referring("b", now).Referring("a", now.Add(time.Hour))
	if len(shared.Refs) != 0 || len(one.Refs) != 1 || len(two.Refs) != 2 {
		t.Errorf("references: %v, %v, %v", shared.Refs, one.Refs, two.Refs)
	}
	if r, ok := two.Ref("a"); !ok || r.Alloc != "docker" || !r.Since.Equal(now) {
		t.Errorf("the first: %+v, %t", r, ok)
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
		own = own.Referring(id, now)
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
