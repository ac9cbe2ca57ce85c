package crash_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

// stateScenarios returns the scenarios that affect the whole host.
func stateScenarios() []scenario {
	return []scenario{draining(), restoring("restore"), restoring("restore with a claim", "a")}
}

// draining returns a scenario in which the host is drained. A drain makes two commits: the first
// one stops new claims, and the second one detaches the claim.
func draining() scenario {
	return scenario{
		name: "drain", binding: 2,
		before: func(h *crashHost) { h.Must(h.claim("a", api.ClaimRequest{})) },
		act: func(h *crashHost) error {
			ctx, cancel := h.ctx()
			defer cancel()
			d, err := h.api.Drain(ctx, patience)
			if err == nil && !d.Safe {
				err = errors.New("it is not over")
			}
			return err
		},
		done: func(h *crashHost) bool { return !h.claimed("a") },
		after: func(h *crashHost) {
			ctx, cancel := h.ctx()
			defer cancel()
			_, err := h.api.Undrain(ctx)
			h.Must(err)
		},
	}
}

// restoring returns a scenario in which a backup is restored. The backup contains volume "data" and
// the claims of the given allocs. Before the restore, the claims are detached and the volume is
// deregistered.
func restoring(name string, held ...string) scenario {
	file := func(h *crashHost) string { return filepath.Join(h.Dir, "backup") }
	return scenario{
		name: name, binding: 1, orphans: true,
		before: func(h *crashHost) {
			h.claims(held)
			ctx, cancel := h.ctx()
			defer cancel()
			b, err := h.api.Backup(ctx)
			h.Must(err)
			raw, err := io.ReadAll(b)
			h.Must(errors.Join(err, b.Close(), os.WriteFile(file(h), raw, 0o600)))
			for _, alloc := range held {
				h.Must(h.detach("data", alloc))
			}
			h.Must(h.deregister("data", false))
		},
		act: func(h *crashHost) error {
			ctx, cancel := h.ctx()
			defer cancel()
			backup, err := os.ReadFile(file(h))
			h.Must(err)
			if _, err := h.api.Restore(ctx, bytes.NewReader(backup), false); err != nil || len(held) == 0 {
				return err
			}
			_, err = h.api.WaitVolume(ctx, "data", apiclient.ForMounted, patience)
			return err
		},
		done: func(h *crashHost) bool { return h.volume("data") != nil },
	}
}
