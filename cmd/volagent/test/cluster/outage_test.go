package cluster_test

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestOutage stops etcd while a host holds a volume. The host then serves further claims of this
// volume, detaches claims, and claims the volume again, also after a crash of the agent. A claim that
// needs another hold fails with the code for an unavailable service, and names etcd. After the
// outage the host gives up its hold. (I5)
func TestOutage(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	r.share("db", mode("single-node-multi-writer"))
	r.share("other")
	claim(a, "db", "one")

	r.etcd.Stop(0)
	claim(a, "db", "two")
	a.Volctl("volume", "detach", "db", "one")
	a.Volctl("volume", "detach", "db", "two")
	path := claim(a, "db", "three")
	a.Must(write(a, path, "f", "x"))
	for _, h := range r.hosts {
		r := h.Try("volume", "claim", "other", "--alloc", "x", "--timeout", "2s")
		if r.Code != 6 || !strings.Contains(r.Err, "http://127.") || !strings.Contains(r.Err, "since 20") {
			t.Errorf("a claim during the outage ended with %d: %s", r.Code, r.Err)
		}
	}
	a.Kill()
	a.Start("san")
	claim(a, "db", "four")
	for _, alloc := range []string{"three", "four"} {
		a.Volctl("volume", "detach", "db", alloc)
	}

	r.etcd.Start(0)
	claim(b, "db", "web", "--timeout", "60s")
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
}
