package cluster_test

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestModes claims a volume on three hosts in each access mode. Only the permitted hosts get it, and
// a refusal names the host that has it. (I1)
func TestModes(t *testing.T) {
	for _, driver := range []struct {
		name string
		san  san.Config
	}{
		{"attach and stage", san.Config{Attach: true, Stage: true}},
		{"attach", san.Config{Attach: true}},
		{"node only", san.Config{NodeOnly: true, Stage: true}},
	} {
		t.Run(driver.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 3, driver.san)
			a, b, c := r.hosts[0], r.hosts[1], r.hosts[2]

			r.share("one", mode("single-node-writer"))
			path := claim(a, "one", "web")
			a.Must(write(a, path, "greeting", "from h1"))
			refused(t, b.Try("volume", "claim", "one", "--alloc", "web", "--timeout", "2s").Err, `held by host "h1"`)
			a.Volctl("volume", "detach", "one", "web")
			path = claim(b, "one", "web")
			if text := read(b, path, "greeting"); text != "from h1" {
				t.Errorf("the moved volume contains %q", text)
			}
			b.Volctl("volume", "detach", "one", "web")

			r.share("many", mode("multi-node-multi-writer"))
			for _, h := range r.hosts {
				path := claim(h, "many", "web")
				h.Must(write(h, path, "f", "x"))
			}
			for _, h := range r.hosts {
				h.Volctl("volume", "detach", "many", "web")
			}

			r.share("mixed", mode("multi-node-single-writer"))
			claim(a, "mixed", "reader", "--read-only")
			claim(b, "mixed", "reader", "--read-only")
			path = claim(c, "mixed", "writer")
			c.Must(write(c, path, "f", "x"))
			refused(t, b.Try("volume", "claim", "mixed", "--alloc", "writer", "--timeout", "2s").Err, "this host holds volume \"mixed\" as a reader")
			b.Volctl("volume", "detach", "mixed", "reader")
			refused(t, b.Try("volume", "claim", "mixed", "--alloc", "writer", "--timeout", "2s").Err, `held by host "h3"`)
			c.Volctl("volume", "detach", "mixed", "writer")
			claim(b, "mixed", "writer")
			b.Volctl("volume", "detach", "mixed", "writer")
			a.Volctl("volume", "detach", "mixed", "reader")

			r.share("readers", mode("multi-node-reader-only"))
			for _, h := range r.hosts {
				claim(h, "readers", "web", "--read-only")
			}
			for _, h := range r.hosts {
				h.Volctl("volume", "detach", "readers", "web")
			}
			r.awaitGone()
		})
	}
}

// refused checks that the text of a refusal contains some words.
func refused(t *testing.T, text, words string) {
	t.Helper()
	if !strings.Contains(text, words) {
		t.Errorf("the refusal does not say %q: %s", words, text)
	}
}
