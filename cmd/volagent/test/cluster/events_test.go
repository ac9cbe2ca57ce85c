package cluster_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// expectEvent waits until a host has an event with some words.
func expectEvent(h *harness.Host, words ...string) {
	h.T.Helper()
	h.Await("the event "+strings.Join(words, " "), func() bool {
		for line := range strings.Lines(h.Volctl("events", "--volume", "db")) {
			has := true
			for _, w := range words {
				has = has && strings.Contains(line, w)
			}
			if has {
				return true
			}
		}
		return false
	})
}

// TestEvents changes, moves and deletes a shared volume. Each host that the change concerns has an
// event of it, and a host that never used the volume has none.
func TestEvents(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t, 1)
	a, b, c := startHost(t, "a", etcd, provisioning), startHost(t, "b", etcd, provisioning), startHost(t, "c", etcd, provisioning)
	file := "id: db\nplugin_id: san\nscope: shared\ncapacity_min: 1GiB\n"
	a.Volctl("volume", "create", volumeFileIn(a, "db.yaml", file))
	b.Volctl("volume", "claim", "db", "--alloc", "web")

	a.Volctl("volume", "expand", "db", "2GiB")
	expectEvent(b, "expanded", `host "a" has expanded the volume to 2`)
	a.Volctl("volume", "modify", "db", "iops=7")
	expectEvent(b, "updated", `host "a" has changed the definition`)

	b.Volctl("volume", "detach", "db", "web")
	expectEvent(b, "hold-given-up")
	a.Volctl("volume", "claim", "db", "--alloc", "web")
	expectEvent(a, "hold-acquired")
	a.Volctl("volume", "detach", "db", "web")

	a.Volctl("volume", "delete", "db", "-y")
	expectEvent(b, "deleted", `host "a" has deleted the volume for all hosts`)
	expectEvent(a, "deleted")
	if out := a.Volctl("events", "--volume", "db"); strings.Contains(out, `host "a"`) {
		t.Errorf("the host that has made the changes has them twice:\n%s", out)
	}
	b.Volctl("volume", "register", volumeFileIn(b, "db.yaml", volumeFile))
	b.Volctl("volume", "deregister", "db", "-y")
	expectEvent(a, "deregistered", `host "b" has deregistered`)
	if out := strings.TrimSpace(c.Volctl("events", "--volume", "db", "-o", "json")); strings.Contains(out, "db") {
		t.Errorf("host c, which never used the volume, has events:\n%s", out)
	}

	a.Await("the election of a host, which counts the live ones", func() bool {
		return slices.ContainsFunc([]*harness.Host{a, b, c}, func(h *harness.Host) bool {
			return strings.Contains(harness.Metrics(h), "volagent_cluster_live_hosts 3")
		})
	})
	for _, name := range []string{
		"reachable 1", "holds 0", "admission_duration_seconds_count 1", "calls_in_flight 0", "watch_lag_seconds ", `queue_length{lane="holds"} 0`,
		`queue_age_seconds{lane="releases"} 0`, `queue_length{lane="status"} `,
	} {
		mustSay(t, "the metrics", harness.Metrics(a), "volagent_cluster_"+name)
	}
}
