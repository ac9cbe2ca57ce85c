package cluster_test

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
)

// TestReplace replaces a host whose agent was stopped. The command is refused while the lease of the
// host exists. Another host then gets the volume, and the old agent finds that it has lost its hold.
func TestReplace(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, noAttachment), startHost(t, "b", etcd, noAttachment)
	registerShared(a)
	a.Volctl("volume", "claim", "db", "--alloc", "web")

	if r := b.Try("node", "replace", "a", "--reason", "burnt", "-y"); r.Code != 4 || !strings.Contains(r.Err, "alive") {
		t.Errorf("while it is alive: exit %d, %s", r.Code, r.Err)
	}
	a.Must(a.Signal(15))
	a.Await("the departure of host a", func() bool { return strings.Contains(b.Volctl("node", "list"), "away") })
	if out := b.Volctl("node", "replace", "a", "--reason", "burnt", "-y"); !strings.Contains(out, "db") {
		t.Errorf("replaced: %s", out)
	}
	b.Volctl("volume", "claim", "db", "--alloc", "web")
	if v := statusOf(b); len(v.Holds) != 1 || v.Holds[0].Host != "b" {
		t.Errorf("after the replacement: %+v", v.Holds)
	}
	b.Volctl("volume", "detach", "db", "web")

	a.Start("san")
	a.Await("the loss of the hold", func() bool { return strings.Contains(a.Volctl("events"), "hold-lost") })
	a.Await("host a without the volume", func() bool { return !strings.Contains(a.Volctl("node", "status"), "1 hold") && a.Mounts() == "" })
}
