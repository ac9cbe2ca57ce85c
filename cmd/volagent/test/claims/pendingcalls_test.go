package claims_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// attaching configures a plugin that reports on which nodes its volumes are published.
func attaching(c *csitest.Config) {
	c.Attach, c.Lists, c.PublishedNodes = true, true, true
}

// publishedOn returns the nodes on which a volume is published according to the plugin.
func publishedOn(h harness.Recorded, external string) []string {
	h.T.Helper()
	var list []struct {
		ExternalID     string   `json:"external_id"`
		PublishedNodes []string `json:"published_nodes"`
	}
	h.Must(json.Unmarshal([]byte(h.Volctl("plugin", "volumes", "rec", "-o", "json")), &list))
	for _, v := range list {
		if v.ExternalID == external {
			return v.PublishedNodes
		}
	}
	return nil
}

// TestForcedThenRegisteredAgain checks a forced deregister that leaves a mount in use. The test
// registers and claims the same storage again, kills the agent, and detaches the new claim. The
// agent must make no call for the new volume before the old mount is gone.
func TestForcedThenRegisteredAgain(t *testing.T) {
	t.Parallel()
	for name, lazy := range map[string]bool{"mounted": false, "unmounted lazily": true} {
		t.Run(name, func(t *testing.T) {
			h := harness.StartRecorded(t, "5s", nil)
			h.Register("data", "single-node-writer")
			path := h.Volctl("volume", "claim", "data", "--alloc", "one")
			user := harness.StartSleeper(t, path)
			if r := h.Try("volume", "detach", "data", "one", "--timeout", "1s"); r.Code == 0 {
				t.Fatalf("a busy mount is detached: %+v", r)
			}
			if lazy {
				h.AddFaults(csitest.Fault{Method: csitest.NodeUnpublish, Code: codes.Unavailable, Times: -1})
				h.Volctl("volume", "detach", "data", "one", "--without-plugin=lazy")
			}
			h.Volctl("volume", "deregister", "data", "--force", "-y")
			h.Register("data", "single-node-writer")
			h.Volctl("volume", "claim", "data", "--alloc", "two", "--no-wait")
			h.Kill()
			mark := h.Mark()
			h.Start("rec")
			h.Volctl("volume", "detach", "data", "two")
			h.Await("the old mount to be tried again", func() bool { return h.Calls(mark).Count(csitest.NodeUnpublish) > 1 })
			if lazy {
				h.Must(h.Config.Faults().Clear())
				h.Await("the agent to look for the last user", func() bool {
					return strings.Contains(h.Volctl("node", "status"), "by force") && h.Calls(mark).Count(csitest.NodeUnstage) > 0
				})
			} else if !strings.Contains(h.Mounts(), path) || h.Calls(mark).Count(csitest.NodeUnstage) > 0 {
				t.Errorf("the mount is in use, and these calls were made: %v\n%s", h.Calls(mark).Methods(), h.Mounts())
			}
			if n := h.Calls(mark).Count(csitest.ControllerUnpublish); n > 0 {
				t.Errorf("the storage was detached under its user")
			}
			user.Kill()
			if lazy {
				return // the agent cannot prove that a lazily unmounted volume is unused
			}
			h.Await("what was left to be undone", func() bool { return !strings.Contains(h.Volctl("node", "status"), "by force") })
			calls := h.Calls(mark).Methods()
			if end := []string{csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish}; len(calls) < 3 || !slices.Equal(calls[len(calls)-3:], end) {
				t.Errorf("the calls end otherwise than in %v: %v", end, calls)
			}
			h.Volctl("volume", "claim", "data", "--alloc", "two")
			h.Volctl("volume", "detach", "data", "two")
		})
	}
}

// TestPublishDuringUnstage kills the agent during a slow NodeUnstageVolume while another claim
// waits. This call will still remove the staging mount, so the next agent must not publish the
// volume from that mount.
func TestPublishDuringUnstage(t *testing.T) {
	t.Parallel()
	const slow = 3 * time.Second
	h := newApart(t, "5s", nil)
	h.Register("data", "single-node-multi-writer")
	h.Volctl("volume", "claim", "data", "--alloc", "one")
	h.AddFaults(csitest.Fault{Method: csitest.NodeUnstage, Delay: slow})
	mark := h.Mark()
	h.Volctl("volume", "detach", "data", "one", "--no-wait")
	h.Await("the unstage", func() bool { return h.Calls(mark).Count(csitest.NodeUnstage) == 1 })
	asked := time.Now()
	h.Volctl("volume", "claim", "data", "--alloc", "two", "--no-wait")
	h.Kill()
	h.Start()
	path := h.Volctl("volume", "claim", "data", "--alloc", "two")
	if d := time.Since(asked); d < slow {
		t.Errorf("published after %s, while an unstage is at work for %s", d, slow)
	}
	if !strings.Contains(h.Mounts(), path) || h.Calls(mark).Count(csitest.NodeStage) != 1 {
		t.Errorf("the claim is not mounted on a staging of its own: %v\n%s", h.Calls(mark).Methods(), h.Mounts())
	}
	h.Volctl("volume", "detach", "data", "two")
}

// TestLateDetach checks a ControllerUnpublishVolume that exceeds its deadline and takes effect
// later. The agent mounts the next claim only when this late effect is no longer possible, even if
// the agent or the plugin restarts.
func TestLateDetach(t *testing.T) {
	t.Parallel()
	const deadline = 2 * time.Second
	claim := func(t *testing.T, h *apart, since time.Time, least time.Duration) {
		t.Helper()
		path := h.Volctl("volume", "claim", "data", "--alloc", "two")
		if d := time.Since(since) + 200*time.Millisecond; d < least { // the test sees the call late
			t.Errorf("mounted %s after a detach of unknown outcome began, before %s", d, least)
		}
		if nodes := publishedOn(h.Recorded, "ext/data"); !slices.Equal(nodes, []string{"test-host"}) || !strings.Contains(h.Mounts(), path) {
			t.Errorf("the claim is mounted, and the storage is published on %q:\n%s", nodes, h.Mounts())
		}
		h.Volctl("volume", "detach", "data", "two")
		if nodes := publishedOn(h.Recorded, "ext/data"); len(nodes) != 0 {
			t.Errorf("the volume is free, and published on %q", nodes)
		}
	}
	begin := func(t *testing.T, late csitest.Fault) (h *apart, since time.Time, mark int64) {
		t.Helper()
		h = newApart(t, deadline.String(), attaching)
		h.Register("data", "single-node-multi-writer")
		h.Volctl("volume", "claim", "data", "--alloc", "one")
		late.Method = csitest.ControllerUnpublish
		h.AddFaults(late)
		mark = h.Mark()
		h.Volctl("volume", "detach", "data", "one", "--no-wait")
		h.Await("the call", func() bool { return h.Calls(mark).Count(csitest.ControllerUnpublish) == 1 })
		return h, time.Now(), mark
	}
	t.Run("nothing else happens", func(t *testing.T) {
		h, since, _ := begin(t, csitest.Fault{Delay: deadline * 3 / 2})
		h.Volctl("volume", "detach", "data", "one")
		claim(t, h, since, 2*deadline)
	})
	t.Run("the agent is killed", func(t *testing.T) {
		h, since, _ := begin(t, csitest.Fault{Delay: deadline * 3 / 4})
		h.Volctl("volume", "claim", "data", "--alloc", "two", "--no-wait")
		h.Kill()
		h.Start()
		claim(t, h, since, deadline)
	})
	t.Run("the plugin is killed", func(t *testing.T) {
		h, since, mark := begin(t, csitest.Fault{Delay: deadline * 3 / 2, Effect: csitest.EffectNone})
		h.Await("the second call", func() bool { return h.Calls(mark).Count(csitest.ControllerUnpublish) == 2 })
		h.lose()
		h.startPlugin()
		claim(t, h, since, 2*deadline)
	})
	t.Run("the plugin lists it as published", func(t *testing.T) {
		h, _, mark := begin(t, csitest.Fault{Code: codes.DeadlineExceeded, Effect: csitest.EffectNone})
		h.AddFaults(csitest.Fault{Method: csitest.ControllerUnpublish, Effect: csitest.EffectNone})
		h.Volctl("volume", "detach", "data", "one")
		if n, nodes := h.Calls(mark).Count(csitest.ControllerUnpublish), publishedOn(h.Recorded, "ext/data"); n < 3 || len(nodes) > 0 {
			t.Errorf("the volume is free after %d calls, and published on %q", n, nodes)
		}
	})
}

// TestLateAttach checks a ControllerPublishVolume that exceeds its deadline and takes effect after
// its claim was detached. The claim may end only when the storage is certainly disconnected.
func TestLateAttach(t *testing.T) {
	t.Parallel()
	const late = 3 * time.Second
	for name, killed := range map[string]bool{"nothing else happens": false, "the agent is killed": true} {
		t.Run(name, func(t *testing.T) {
			h := newApart(t, "2s", attaching)
			h.Register("data", "single-node-writer")
			h.AddFaults(csitest.Fault{Method: csitest.ControllerPublish, Delay: late, Times: -1})
			mark := h.Mark()
			h.Volctl("volume", "claim", "data", "--alloc", "one", "--no-wait")
			h.Await("the call", func() bool { return h.Calls(mark).Count(csitest.ControllerPublish) == 1 })
			if killed {
				h.Kill()
				h.Start()
			}
			h.Volctl("volume", "detach", "data", "one")
			h.Must(h.Config.Faults().Clear())
			h.Volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
			if nodes := publishedOn(h.Recorded, "ext/data"); len(nodes) > 0 {
				t.Errorf("the volume is free, and published on %q", nodes)
			}
			calls := h.Calls(mark).Methods()
			if last := calls[len(calls)-1]; last != csitest.ControllerUnpublish {
				t.Errorf("the last call is %s", last)
			}
			h.Await("all calls to end", func() bool {
				return !slices.ContainsFunc(h.Calls(mark), func(c csitest.Call) bool { return !c.Ended() })
			})
			if nodes := publishedOn(h.Recorded, "ext/data"); len(nodes) > 0 {
				t.Errorf("the volume was attached afterwards, to %q", nodes)
			}
		})
	}
}

// TestCreateAfterCrash kills the agent during a CreateVolume. The next agent may repeat the call
// only when the first call can no longer be in progress, or when the plugin was restarted. The
// creation of other volumes need not wait.
func TestCreateAfterCrash(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"one deadline": false, "until the plugin is started again": true} {
		t.Run(name, func(t *testing.T) {
			deadline := 12 * time.Second // longer than a restart of the agent takes on a busy machine
			if restarted {
				deadline = time.Minute
			}
			h := newApart(t, deadline.String(), func(c *csitest.Config) { c.CreateDelete = true })
			h.Volctl("volume", "create", "settled", "--plugin", "rec")
			mark := h.Mark()
			h.AddFaults(csitest.Fault{Method: csitest.CreateVolume, Delay: deadline})
			cut := exec.Command(filepath.Join(harness.BinDir, "volctl"), "volume", "create", "data", "--plugin", "rec")
			cut.Env = h.Env
			h.Must(cut.Start())
			h.Await("the call", func() bool { return h.Calls(mark).Count(csitest.CreateVolume) == 1 })
			began := time.Now()
			h.Kill()
			_ = cut.Wait() // the agent is gone, so the command fails
			h.Start("rec")

			h.Volctl("volume", "delete", "settled", "-y")
			if d := time.Since(began); d > deadline {
				t.Errorf("a volume that is settled waited: %s", d)
			}
			if restarted {
				h.lose()
				h.startPlugin()
				h.Volctl("wait", "--plugin", "rec")
			}
			h.Volctl("volume", "create", "data", "--plugin", "rec")
			switch d := time.Since(began); {
			case !restarted && d < deadline:
				t.Errorf("the same create was called after %s, while the first one may be at work for %s", d, deadline)
			case restarted && d >= deadline/2:
				t.Errorf("it waited for %s although the plugin was started again", d)
			}
			if n := h.Calls(mark).Count(csitest.CreateVolume); n != 2 {
				t.Errorf("CreateVolume was called %d times", n)
			}
		})
	}
}
