package crash_test

import (
	"strings"
	"syscall"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/crasher"
	"github.com/volagent/volagent/volmgr/csitest"
)

// scenario describes one request, during which the test may kill the agent or the plugin.
type scenario struct {
	name string
	tune func(*csitest.Config)
	// before prepares the host for the request. The test kills no process during this preparation.
	// Volume "data" already exists and contains a file.
	before func(*crashHost)
	act    func(*crashHost) error
	done   func(*crashHost) bool
	// binding is the number of the commit after which the agent must complete the request, counted
	// from 1. If the agent dies after this commit, the next agent completes the request. If the
	// agent dies before this commit, the request has no effect. If binding is greater than 1, the
	// client must repeat a request that was interrupted.
	binding int
	// again is the error code that the agent returns if a complete request is repeated.
	again api.Code
	// keeps lists the allocs whose mounts must not change.
	keeps []string
	// commits excludes CSI calls from the points, for scenarios in which the time of the calls is
	// not predictable.
	commits bool
	// atOnce marks a scenario whose request makes only one commit, after one CSI call that changes
	// nothing.
	atOnce bool
	// rough marks a scenario whose interrupted request leaves an inconsistent state until the
	// request is repeated.
	rough bool
	// after cleans up after the request.
	after   func(*crashHost)
	orphans bool // the plugin may have volumes without a record in the agent
	every   bool // the agent dies at every point, even without -crash.full
}

var (
	withoutStage  = func(c *csitest.Config) { c.Stage = false }
	withoutAttach = func(c *csitest.Config) { c.Attach = false }
)

func scenarios() []scenario {
	all := append(claimScenarios(), detachScenarios()...)
	all = append(all, expandScenarios()...)
	all = append(all, stateScenarios()...)
	return append(all, volumeScenarios()...)
}

// claiming returns a scenario in which an alloc claims a volume.
func claiming(name string, tune func(*csitest.Config), req func(*crashHost) api.ClaimRequest, held ...string) scenario {
	return scenario{
		name: name, tune: tune, binding: 1, keeps: held,
		before: func(h *crashHost) { h.claims(held) },
		act:    func(h *crashHost) error { return h.claim("a", req(h)) },
		done:   func(h *crashHost) bool { return h.claimed("a") },
	}
}

func plain(*crashHost) api.ClaimRequest    { return api.ClaimRequest{} }
func readOnly(*crashHost) api.ClaimRequest { return api.ClaimRequest{ReadOnly: true} }
func bound(h *crashHost) api.ClaimRequest  { return api.ClaimRequest{At: h.at("a")} }

// claims makes a claim on volume "data" for each of the given allocs.
func (h *crashHost) claims(allocs []string) {
	h.T.Helper()
	for _, a := range allocs {
		h.Must(h.claim(a, api.ClaimRequest{}))
	}
}

func claimScenarios() []scenario {
	first := claiming("claim", nil, plain)
	first.every = true
	return []scenario{
		first,
		claiming("claim, no stage", withoutStage, plain),
		claiming("claim, no attach", withoutAttach, plain),
		claiming("claim, neither", harness.PublishOnly, plain),
		claiming("claim, read-only", nil, readOnly),
		claiming("claim, bound", nil, bound),
		upgraded(),
		claiming("second claim", nil, plain, "b"),
		claiming("second claim, read-only", nil, readOnly, "b"),
		claiming("second claim, bound, neither", harness.PublishOnly, bound, "b"),
	}
}

// upgraded returns a scenario in which an alloc claims a volume while the plugin restarts with
// other capabilities. The plugin now needs ControllerPublishVolume and NodeStageVolume. Before the
// first call, the agent must store that the volume needs both calls.
func upgraded() scenario {
	s := claiming("claim, plugin upgraded", harness.PublishOnly, plain)
	s.before = func(h *crashHost) {
		pid := h.PluginPID("rec")
		h.Must(h.Signal(syscall.SIGTERM))
		h.Must(crasher.Kill(pid))
		h.starts++
		h.Config.Attach, h.Config.Stage = true, true
		h.WritePlugin(crashDeadline)
		h.AddFaults(csitest.Fault{Method: csitest.Probe, Hang: true, Times: -1})
		h.launch(true)
		h.Await("the plugin's process", func() bool { return h.pluginStarts() == h.starts && h.PluginPID("rec") != 0 })
	}
	s.act = func(h *crashHost) error {
		ctx, cancel := h.ctx()
		defer cancel()
		_, err := h.api.ClaimVolume(ctx, "data", "a", api.ClaimRequest{}, 0)
		h.Must(h.Config.Faults().Clear())
		if err != nil {
			return err
		}
		return h.claim("a", api.ClaimRequest{})
	}
	return s
}

// detaching returns a scenario in which the claim of one alloc is detached.
func detaching(name string, tune func(*csitest.Config), req func(*crashHost) api.ClaimRequest, kept ...string) scenario {
	return scenario{
		name: name, tune: tune, binding: 1, keeps: kept, again: api.CodeNotFound,
		before: func(h *crashHost) {
			h.claims(kept)
			h.Must(h.claim("a", req(h)))
		},
		act:  func(h *crashHost) error { return h.detach("data", "a") },
		done: func(h *crashHost) bool { return !h.claimed("a") },
	}
}

func detachScenarios() []scenario {
	last := detaching("last detach", nil, plain)
	last.every = true
	return []scenario{
		last,
		detaching("last detach, no stage", withoutStage, plain),
		detaching("last detach, no attach", withoutAttach, plain),
		detaching("last detach, neither", harness.PublishOnly, plain),
		detaching("last detach, read-only", nil, readOnly),
		detaching("last detach, bound", nil, bound),
		detaching("detach of one of two", nil, plain, "b"),
		detaching("detach of one of two, bound, no stage", withoutStage, bound, "b"),
	}
}

func volumeScenarios() []scenario {
	gone := func(id string) func(*crashHost) bool {
		return func(h *crashHost) bool { return h.volume(id) == nil }
	}
	return []scenario{
		{
			name: "register", binding: 1, atOnce: true, orphans: true,
			before: func(h *crashHost) { h.Must(h.deregister("data", false)) },
			act:    (*crashHost).registerData,
			done:   func(h *crashHost) bool { return h.volume("data") != nil },
		},
		{
			name: "deregister", binding: 1, again: api.CodeNotFound, orphans: true,
			act:  func(h *crashHost) error { return h.deregister("data", false) },
			done: gone("data"),
		},
		forced(),
		claimedAgain(),
		{
			name: "create", binding: 2, rough: true,
			act:  func(h *crashHost) error { return h.create("made") },
			done: func(h *crashHost) bool { v := h.volume("made"); return v != nil && v.Spec.ExternalID != "" },
		},
		{
			name: "delete", binding: 2, rough: true, again: api.CodeNotFound,
			before: func(h *crashHost) {
				h.Must(h.create("made"))
				h.seed("made")
				delete(h.seeded, "made")
			},
			act:  func(h *crashHost) error { return h.remove("made") },
			done: gone("made"),
		},
	}
}

// forced returns a scenario of a forced deregister. The last claim of the volume cannot be
// detached, because a process uses the mount. The deregister leaves the volume mounted, and the
// agent makes the pending calls later. Then the volume is registered again.
func forced() scenario {
	return scenario{
		name: "deregister -force", binding: 1, again: api.CodeNotFound, commits: true, rough: true,
		before: stuckRelease,
		act:    func(h *crashHost) error { return h.deregister("data", true) },
		done:   func(h *crashHost) bool { return h.volume("data") == nil },
		after: func(h *crashHost) {
			if got := strings.Count(h.Mounts(), "\n"); got != 2 {
				h.T.Errorf("%d mounts are left, want the staging and the target:\n%s", got, h.Mounts())
			}
			h.holder.Kill()
			h.Must(h.registerData())
		},
	}
}

// stuckRelease creates a claim and starts a detach that cannot complete, because a process uses the
// claim's mount.
func stuckRelease(h *crashHost) {
	h.T.Helper()
	h.Must(h.claim("a", api.ClaimRequest{}))
	h.holder = harness.StartSleeper(h.T, h.wantPath("data", "a", ""))
	ctx, cancel := h.ctx()
	defer cancel()
	h.Must(h.api.DetachClaim(ctx, "data", "a", noWait))
	// Wait until the delay between retries is long, so that no retry commits a change during the
	// scenario.
	h.Await("the release to be stuck, and not to be tried again soon", func() bool {
		at := h.volume("data").Attempt
		return at != nil && at.Tries > 2
	})
}

// claimedAgain returns a scenario with storage that was deregistered by force while a process used
// it, and then registered again. The scenario makes a new claim and detaches it before the agent
// has made the pending calls, so the agent makes no CSI call for the new claim.
func claimedAgain() scenario {
	return scenario{
		name: "claim after deregister -force", binding: 1, commits: true, rough: true,
		before: func(h *crashHost) {
			stuckRelease(h)
			h.Must(h.deregister("data", true))
			h.Must(h.registerData())
		},
		act: func(h *crashHost) error {
			ctx, cancel := h.ctx()
			defer cancel()
			_, err := h.api.ClaimVolume(ctx, "data", "b", api.ClaimRequest{}, 0)
			return err
		},
		done: func(h *crashHost) bool { return h.claimed("b") },
		after: func(h *crashHost) {
			h.Must(h.detach("data", "b"))
			if got := strings.Count(h.Mounts(), "\n"); got != 2 {
				h.T.Errorf("%d mounts are left, want the staging and the target:\n%s", got, h.Mounts())
			}
			h.holder.Kill()
		},
	}
}
