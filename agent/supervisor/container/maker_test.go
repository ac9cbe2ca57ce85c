package container

import (
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/plugin"
)

// newTest returns the runner of a plugin with the given container, for an agent with the given data
// dir.
func newTest(data string, c plugin.Container) *Runner {
	paths := part.Dirs{Data: data, Runtime: "/run/volagent"}.Paths("ebs", "ebs")
	return New(runner.Part{
		ID: "ebs", Slot: "ebs", Definition: &plugin.Definition{Container: &c}, Paths: paths, Values: paths.Values("ebs", "node"),
	}, Options{})
}

// TestOurs checks that a container counts as the agent's own only if this agent made it for this
// plugin.
func TestOurs(t *testing.T) {
	r := newTest("/var/lib/volagent", plugin.Container{Runtime: "docker", Image: "i"})
	s, err := r.spec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !r.ours(container.Container{Labels: s.Labels}) {
		t.Errorf("a container with the labels %v is not recognised", s.Labels)
	}
	other := newTest("/other", plugin.Container{Runtime: "docker", Image: "i"})
	if other.name() == r.name() || other.ours(container.Container{Labels: s.Labels}) {
		t.Error("an agent with another data dir takes the container")
	}
	for label := range s.Labels {
		labels := map[string]string{}
		for k, v := range s.Labels {
			if k != label {
				labels[k] = v
			}
		}
		if label != labelDefinition && r.ours(container.Container{Labels: labels}) {
			t.Errorf("a container without the label %s passes", label)
		}
	}
	if changed := newTest("/var/lib/volagent", plugin.Container{Runtime: "docker", Image: "j"}); changed.made() == r.made() {
		t.Error("another image has the same hash")
	}
}

// TestSpec checks the command, the mounts and the variables of a container.
func TestSpec(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy")
	dir := t.TempDir()
	r := newTest("/var/lib/volagent", plugin.Container{
		Runtime: "docker", Image: "i", Entrypoint: "/e", Args: []string{"--id=${NODE_ID}", "${CSI_SOCKET}"}, Mounts: []string{dir + ":/etc/ceph:ro"},
		Env: map[string]plugin.EnvValue{"A": {Value: "${STATE_DIR}"}},
	})
	s, err := r.spec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Args, []string{"--id=node", r.Paths.Socket}) || s.Entrypoint != "/e" || !slices.Equal(s.Volumes, []string{dir + ":/etc/ceph:ro"}) {
		t.Errorf("%+v", s)
	}
	for _, want := range []container.Var{{Name: "HTTPS_PROXY", Value: "http://proxy"}, {Name: "A", Value: r.Paths.State}, {Name: "CSI_ENDPOINT", Value: "unix://" + r.Paths.Socket}} {
		if !slices.Contains(s.Env, want) {
			t.Errorf("%v is not in %v", want, s.Env)
		}
	}
	shared := slices.IndexFunc(s.Binds, func(b container.Bind) bool { return b.Shared })
	if shared < 0 || s.Binds[shared].Path != r.Paths.MountRoot {
		t.Errorf("the mount root is not shared: %v", s.Binds)
	}

	missing := newTest("/var/lib/volagent", plugin.Container{Runtime: "docker", Image: "i", Mounts: []string{"/no/such:/x"}})
	if _, err := missing.spec(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot mount") {
		t.Errorf("a mount of a path that does not exist: %v", err)
	}
}
