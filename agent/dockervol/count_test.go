package dockervol

import (
	"errors"
	"testing"

	"github.com/volagent/volagent/volmgr/plugin"
)

// TestMountsAreCounted checks the calls of "docker cp". Docker sends a second Mount for the id of a
// running container, and later an Unmount that ends only this second Mount.
func TestMountsAreCounted(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	w.mounted(s, "data", "web")
	w.mounted(s, "data", "web")
	must(t, s.Unmount(t.Context(), docker, "data", "web"))
	w.want("claims after docker cp", w.claims(), "data docker")
	w.want("references after docker cp", w.refs("data"), "web")
	must(t, s.Unmount(t.Context(), docker, "data", "web"))
	w.want("claims after the container ended", w.claims())
	w.want("references after the container ended", w.refs("data"))
}

// TestUnmountRepeated checks an Unmount that docker repeats after an interruption, so that the
// agent counts it twice. The claim must stay as long as another mount namespace contains the
// container's mount.
func TestUnmountRepeated(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	w.mounted(s, "data", "web")
	w.elsewhere = []string{"process 7"}
	for range 2 {
		must(t, s.Unmount(t.Context(), docker, "data", "web"))
		w.want("claims under a container", w.claims(), "data docker")
	}
	w.elsewhere, w.elseIs = nil, errors.New("busy")
	must(t, s.Unmount(t.Context(), docker, "data", "other"))
	w.want("claims while the namespaces cannot be read", w.claims(), "data docker")

	w.elseIs = nil
	must(t, s.Unmount(t.Context(), docker, "data", "web"))
	w.want("claims after the container ended", w.claims())

	// Another container shares the claim. A repeated Unmount has removed the reference of this
	// container, but the container keeps the claim.
	w.mounted(s, "data", "lost")
	w.mounted(s, "data", "other")
	must(t, s.Unmount(t.Context(), docker, "data", "lost"))
	w.elsewhere = []string{"process 7"}
	must(t, s.Unmount(t.Context(), docker, "data", "other"))
	w.want("claims under the container whose reference was lost", w.claims(), "data docker")
	w.elsewhere = nil
	must(t, s.Unmount(t.Context(), docker, "data", "lost"))
	w.want("claims at the end", w.claims())
	w.want("references at the end", w.refs("data"))
}

// TestDockerStartedAgain checks a restarted docker daemon, which counts from zero. Mounts of the
// earlier daemon that no Unmount has ended must not keep a claim.
func TestDockerStartedAgain(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	w.mounted(s, "data", "web")
	w.mounted(s, "data", "web")
	next := Caller{Runtime: plugin.RuntimeDocker, Process: "the next dockerd"}
	if _, err := s.Mount(t.Context(), next, "data", "web"); err != nil {
		t.Fatal(err)
	}
	must(t, s.Unmount(t.Context(), next, "data", "web"))
	w.want("claims after the container ended", w.claims())

	w.mounted(s, "data", "web")
	w.mounted(s, "data", "web")
	must(t, s.Unmount(t.Context(), next, "data", "web"))
	w.want("claims after a container ended that the earlier one had started", w.claims())
}

// TestOrphanInUse checks that a claim without a reference stays while another mount namespace
// contains its mount.
func TestOrphanInUse(t *testing.T) {
	w, s := newWorld(t, "data")
	must(t, s.Create(t.Context(), docker, "data", nil))
	w.mounted(s, "data", "web")
	clear(w.names)
	w.elsewhere = []string{"process 7"}
	s.Reap(t.Context())
	w.want("claims under a container", w.claims(), "data docker")
	w.elsewhere = nil
	s.Reap(t.Context())
	w.want("claims after it ended", w.claims())
}
