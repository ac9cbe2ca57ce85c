package dockervol

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestMount checks that all references share one claim. The end of the last reference detaches the
// claim.
func TestMount(t *testing.T) {
	w, s := newWorld(t, "data")
	ctx := t.Context()
	must(t, s.Create(ctx, docker, "data", opts{"ro": ""}))
	for _, id := range []string{"a", "b", "a", "c"} {
		if path := w.mounted(s, "data", id); path != "/t/docker/data" {
			t.Errorf("%s has it at %q", id, path)
		}
	}
	w.want("references", w.refs("data"), "a", "b", "c")
	if c := w.volumes["data"].Claims["docker"]; !c.ReadOnly || c.Owner != (volume.Owner{Kind: volume.OwnerRuntime, Runtime: "docker", Volume: "data"}) {
		t.Errorf("the claim: %+v", c)
	}
	says(t, s.Remove(ctx, docker, "data"), `volume "data" is in use by 3 containers (a, b, c) of docker`, "docker ps -a --filter volume=data")
	for _, id := range []string{"a", "a", "nobody", "c"} {
		must(t, s.Unmount(ctx, docker, "data", id))
	}
	w.want("claims with one left", w.claims(), "data docker")
	must(t, s.Unmount(ctx, docker, "data", "b"))
	must(t, s.Unmount(ctx, docker, "unknown", "b"))
	w.want("claims at the end", w.claims())
	if w.admitted != 1 {
		t.Errorf("there were %d claims", w.admitted)
	}
	must(t, s.Remove(ctx, docker, "data"))
	must(t, s.Remove(ctx, docker, "data"))
	if len(w.names) > 0 || len(w.deleted) > 0 {
		t.Errorf("left: %v; deleted: %v", w.names, w.deleted)
	}
}

// TestExclusive checks that each container has its own claim if the option exclusive is set. The
// ids of two containers may begin with the same characters.
func TestExclusive(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", opts{"exclusive": "true"}))
	long := "0123456789abcdef"
	w.mounted(s, "data", long+"1")
	w.mounted(s, "data", long+"2")
	w.mounted(s, "data", "a/b")
	if got := w.claims(); len(got) != 3 || got[0] != "data docker-0123456789ab" {
		t.Errorf("claims: %q", got)
	}
	must(t, s.Unmount(t.Context(), docker, "data", long+"1"))
	if got := w.claims(); len(got) != 2 || got[0] == "data docker-0123456789ab" {
		t.Errorf("claims: %q", got)
	}
}

// TestMountFails checks that a failed Mount leaves no claim and returns the reason. Earlier
// references stay.
func TestMountFails(t *testing.T) {
	w, s := newWorld(t, "data")
	ctx := t.Context()
	must(t, s.Create(ctx, docker, "data", nil))
	w.mount = func(context.Context) error {
		w.want("on disk before the mount", w.refs("data"), "a")
		return volume.Errorf(volume.ErrPluginUnavailable, `plugin "p" is backing-off`).WithHint("volctl plugin logs p")
	}
	_, err := s.Mount(ctx, docker, "data", "a")
	says(t, err, `plugin "p" is backing-off (hint: volctl plugin logs p)`)
	w.want("references", w.refs("data"))
	w.want("claims", w.claims())

	// The runtime no longer waits for the answer, so the claim must not stay.
	gone, cancel := context.WithCancel(ctx)
	w.mount = func(ctx context.Context) error { cancel(); return ctx.Err() }
	if _, err := s.Mount(gone, docker, "data", "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
	w.want("references", w.refs("data"))
	w.want("claims", w.claims())

	// The agent is stopping, so the reference and the claim stay until its restart.
	stopping, stop := context.WithCancelCause(ctx)
	w.mount = func(ctx context.Context) error { stop(volume.ErrStopping); return ctx.Err() }
	if _, err := s.Mount(stopping, docker, "data", "a"); err == nil {
		t.Error("a mount that was not made")
	}
	w.want("references", w.refs("data"), "a")
	w.want("claims", w.claims(), "data docker")

	// After the restart, the agent continues the same Mount, which counts once.
	w.mount = nil
	w.mounted(s, "data", "a")
	must(t, s.Unmount(ctx, docker, "data", "a"))
	w.want("claims after the only Mount was given back", w.claims())

	// Docker has received an answer to an earlier Mount. The agent withdraws only the second Mount.
	w.mounted(s, "data", "a")
	w.mount = func(context.Context) error { return errors.New("no") }
	if _, err := s.Mount(ctx, docker, "data", "a"); err == nil {
		t.Error("a mount that was not made")
	}
	w.want("references", w.refs("data"), "a")

	// A Mount for another container also fails.
	if _, err := s.Mount(ctx, docker, "data", "b"); err == nil {
		t.Error("a mount that was not made")
	}
	w.want("references", w.refs("data"), "a")
	w.want("claims", w.claims(), "data docker")
	if _, err := s.Mount(ctx, docker, "data", ""); err == nil {
		t.Error("a mount for nobody")
	}
}

// TestDiskFull checks that the service does nothing if it cannot store the intent.
func TestDiskFull(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	w.mounted(s, "data", "a")
	w.storeIs = errors.New("no space left on device")
	if _, err := s.Mount(t.Context(), docker, "data", "b"); !errors.Is(err, w.storeIs) {
		t.Errorf("mount: %v", err)
	}
	if err := s.Unmount(t.Context(), docker, "data", "a"); !errors.Is(err, w.storeIs) {
		t.Errorf("unmount: %v", err)
	}
	w.want("claims", w.claims(), "data docker")
}

// TestMountForgotten checks a name that podman knows and the agent has lost. The agent then mounts
// the volume whose id equals the name.
func TestMountForgotten(t *testing.T) {
	w, s := newWorld(t, "data")
	if path, err := s.Mount(t.Context(), podman, "data", "constant"); err != nil || path != "/t/podman/data" {
		t.Errorf("it is at %q, %v", path, err)
	}
	_, err := s.Mount(t.Context(), podman, "nope", "constant")
	says(t, err, `no volume "nope" is registered`)
	must(t, s.Unmount(t.Context(), podman, "data", "constant"))
	w.want("claims", w.claims())
}

// TestConcurrent mounts and unmounts many ids at the same time. A claim must exist while a
// reference exists.
func TestConcurrent(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	var wg sync.WaitGroup
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		wg.Go(func() {
			for range 100 {
				if _, err := s.Mount(t.Context(), docker, "data", id); err != nil {
					t.Error(err)
				}
				if got := w.claims(); len(got) != 1 {
					t.Errorf("%s is mounted, and the claims are %q", id, got)
				}
				if err := s.Unmount(t.Context(), docker, "data", id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	w.want("claims", w.claims())
	w.want("references", w.refs("data"))
	if len(s.locks.by) != 0 {
		t.Errorf("%d locks are left", len(s.locks.by))
	}
}

// TestMountWins checks that a Mount between the last Unmount and the detach keeps the claim.
func TestMountWins(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	w.mounted(s, "data", "a")
	done := make(chan error, 1)
	w.dropping = func() {
		w.dropping = nil
		go func() {
			_, err := s.Mount(t.Context(), docker, "data", "b")
			done <- err
		}()
		select {
		case err := <-done: // no lock must delay the Mount
			done <- err
		case <-time.After(200 * time.Millisecond):
		}
	}
	must(t, s.Unmount(t.Context(), docker, "data", "a"))
	must(t, <-done)
	w.want("references", w.refs("data"), "b")
	w.want("claims", w.claims(), "data docker")
}

// TestRemove checks that Remove destroys the data only if the volume has reclaim: delete and no
// other runtime has a name for it.
func TestRemove(t *testing.T) {
	w, s := newWorld(t)
	ctx := t.Context()
	w.add(volume.Volume{ID: "gone", PluginID: "p", Reclaim: "delete"})
	must(t, s.Create(ctx, docker, "gone", nil))
	must(t, s.Create(ctx, podman, "too", opts{"device": "gone"}))
	must(t, s.Remove(ctx, docker, "gone"))
	w.want("deleted while podman knows it", w.deleted)
	if _, ok := w.RuntimeVolume("docker", "gone"); ok {
		t.Error("docker's name stays")
	}
	must(t, s.Create(ctx, docker, "gone", nil))
	must(t, s.Remove(ctx, podman, "too"))
	w.want("deleted while docker knows it", w.deleted)

	w.volumes["gone"].Claims["web"] = volume.Claim{Alloc: "web", Wanted: true}
	says(t, s.Remove(ctx, docker, "gone"), `volume "gone" is claimed`)
	if _, ok := w.RuntimeVolume("docker", "gone"); !ok {
		t.Error("the name went without the data")
	}
	delete(w.volumes["gone"].Claims, "web")
	must(t, s.Remove(ctx, docker, "gone"))
	w.want("deleted", w.deleted, "gone")
	w.want("events", w.events, "runtime-created", "runtime-created", "runtime-removed", "runtime-created", "runtime-removed", "runtime-removed")
}

// TestRemoveAtOnce checks two runtimes that remove their names of a volume at the same time. In
// either order, exactly one of the runtimes destroys the volume.
func TestRemoveAtOnce(t *testing.T) {
	for range 50 {
		w, s := newWorld(t)
		w.add(volume.Volume{ID: "gone", PluginID: "p", Reclaim: "delete"})
		must(t, s.Create(t.Context(), docker, "gone", nil))
		must(t, s.Create(t.Context(), podman, "gone", nil))
		var wg sync.WaitGroup
		for _, from := range []Caller{docker, podman} {
			wg.Go(func() {
				if err := s.Remove(t.Context(), from, "gone"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		w.want("deleted", w.deleted, "gone")
		if len(w.names) > 0 {
			t.Errorf("the names %v stay", w.names)
		}
	}
}

// TestMountGivenUpByOne checks two podman commands, which share one id. The first command is
// killed. The second command mounts the volume before the agent has withdrawn the first Mount. The
// volume must then stay mounted for the second command.
func TestMountGivenUpByOne(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), podman, "data", nil))
	first, cancel := context.WithCancel(t.Context())
	w.mount = func(ctx context.Context) error {
		w.mount = nil
		if path, err := s.Mount(t.Context(), podman, "data", "pseudo"); err != nil || path == "" {
			t.Errorf("the second: %q, %v", path, err)
		}
		cancel()
		return ctx.Err()
	}
	if _, err := s.Mount(first, podman, "data", "pseudo"); err == nil {
		t.Error("the first was not given up")
	}
	w.want("claims", w.claims(), "data podman")
	must(t, s.Unmount(t.Context(), podman, "data", "pseudo"))
	w.want("claims at the end", w.claims())
}
