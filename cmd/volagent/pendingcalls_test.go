package main_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/volmgr/csitest"
)

// attaching configures a plugin that reports on which nodes its volumes are published.
func attaching(c *csitest.Config) {
	c.Attach, c.Lists, c.PublishedNodes = true, true, true
}

// publishedOn returns the nodes on which a volume is published according to the plugin.
func (h recorded) publishedOn(external string) []string {
	h.t.Helper()
	var list []struct {
		ExternalID     string   `json:"external_id"`
		PublishedNodes []string `json:"published_nodes"`
	}
	h.must(json.Unmarshal([]byte(h.volctl("plugin", "volumes", "rec", "-o", "json")), &list))
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
			h := newRecorded(t, "5s", nil)
			h.register("data", "single-node-writer")
			path := h.volctl("volume", "claim", "data", "--alloc", "one")
			user := newSleeper(t, path)
			if r := h.try("volume", "detach", "data", "one", "--timeout", "1s"); r.code == 0 {
				t.Fatalf("a busy mount is detached: %+v", r)
			}
			if lazy {
				h.fault(csitest.Fault{Method: csitest.NodeUnpublish, Code: codes.Unavailable, Times: -1})
				h.volctl("volume", "detach", "data", "one", "--without-plugin=lazy")
			}
			h.volctl("volume", "deregister", "data", "--force", "-y")
			h.register("data", "single-node-writer")
			h.volctl("volume", "claim", "data", "--alloc", "two", "--no-wait")
			h.kill()
			mark := h.mark()
			h.start("rec")
			h.volctl("volume", "detach", "data", "two")
			h.await("the old mount to be tried again", func() bool { return h.calls(mark).Count(csitest.NodeUnpublish) > 1 })
			if lazy {
				h.must(h.cfg.Faults().Clear())
				h.await("the agent to look for the last user", func() bool {
					return strings.Contains(h.volctl("node", "status"), "by force") && h.calls(mark).Count(csitest.NodeUnstage) > 0
				})
			} else if !strings.Contains(h.mounts(), path) || h.calls(mark).Count(csitest.NodeUnstage) > 0 {
				t.Errorf("the mount is in use, and these calls were made: %v\n%s", h.calls(mark).Methods(), h.mounts())
			}
			if n := h.calls(mark).Count(csitest.ControllerUnpublish); n > 0 {
				t.Errorf("the storage was detached under its user")
			}
			user.kill()
			if lazy {
				return // the agent cannot prove that a lazily unmounted volume is unused
			}
			h.await("what was left to be undone", func() bool { return !strings.Contains(h.volctl("node", "status"), "by force") })
			calls := h.calls(mark).Methods()
			if end := []string{csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish}; len(calls) < 3 || !slices.Equal(calls[len(calls)-3:], end) {
				t.Errorf("the calls end otherwise than in %v: %v", end, calls)
			}
			h.volctl("volume", "claim", "data", "--alloc", "two")
			h.volctl("volume", "detach", "data", "two")
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
	h.register("data", "single-node-multi-writer")
	h.volctl("volume", "claim", "data", "--alloc", "one")
	h.fault(csitest.Fault{Method: csitest.NodeUnstage, Delay: slow})
	mark := h.mark()
	h.volctl("volume", "detach", "data", "one", "--no-wait")
	h.await("the unstage", func() bool { return h.calls(mark).Count(csitest.NodeUnstage) == 1 })
	asked := time.Now()
	h.volctl("volume", "claim", "data", "--alloc", "two", "--no-wait")
	h.kill()
	h.start()
	path := h.volctl("volume", "claim", "data", "--alloc", "two")
	if d := time.Since(asked); d < slow {
		t.Errorf("published after %s, while an unstage is at work for %s", d, slow)
	}
	if !strings.Contains(h.mounts(), path) || h.calls(mark).Count(csitest.NodeStage) != 1 {
		t.Errorf("the claim is not mounted on a staging of its own: %v\n%s", h.calls(mark).Methods(), h.mounts())
	}
	h.volctl("volume", "detach", "data", "two")
}

// TestLateDetach checks a ControllerUnpublishVolume that exceeds its deadline and takes effect
// later. The agent mounts the next claim only when this late effect is no longer possible, even if
// the agent or the plugin restarts.
func TestLateDetach(t *testing.T) {
	t.Parallel()
	const deadline = 2 * time.Second
	claim := func(t *testing.T, h *apart, since time.Time, least time.Duration) {
		t.Helper()
		path := h.volctl("volume", "claim", "data", "--alloc", "two")
		if d := time.Since(since) + 200*time.Millisecond; d < least { // the test notices the call shortly after the call has started
			t.Errorf("mounted %s after a detach of unknown outcome began, before %s", d, least)
		}
		if nodes := h.publishedOn("ext/data"); !slices.Equal(nodes, []string{"test-host"}) || !strings.Contains(h.mounts(), path) {
			t.Errorf("the claim is mounted, and the storage is published on %q:\n%s", nodes, h.mounts())
		}
		h.volctl("volume", "detach", "data", "two")
		if nodes := h.publishedOn("ext/data"); len(nodes) != 0 {
			t.Errorf("the volume is free, and published on %q", nodes)
		}
	}
	begin := func(t *testing.T, late csitest.Fault) (h *apart, since time.Time, mark int64) {
		t.Helper()
		h = newApart(t, deadline.String(), attaching)
		h.register("data", "single-node-multi-writer")
		h.volctl("volume", "claim", "data", "--alloc", "one")
		late.Method = csitest.ControllerUnpublish
		h.fault(late)
		mark = h.mark()
		h.volctl("volume", "detach", "data", "one", "--no-wait")
		h.await("the call", func() bool { return h.calls(mark).Count(csitest.ControllerUnpublish) == 1 })
		return h, time.Now(), mark
	}
	t.Run("nothing else happens", func(t *testing.T) {
		h, since, _ := begin(t, csitest.Fault{Delay: deadline * 3 / 2})
		h.volctl("volume", "detach", "data", "one")
		claim(t, h, since, 2*deadline)
	})
	t.Run("the agent is killed", func(t *testing.T) {
		h, since, _ := begin(t, csitest.Fault{Delay: deadline * 3 / 4})
		h.volctl("volume", "claim", "data", "--alloc", "two", "--no-wait")
		h.kill()
		h.start()
		claim(t, h, since, deadline)
	})
	t.Run("the plugin is killed", func(t *testing.T) {
		h, since, mark := begin(t, csitest.Fault{Delay: deadline * 3 / 2, Effect: csitest.EffectNone})
		h.await("the second call", func() bool { return h.calls(mark).Count(csitest.ControllerUnpublish) == 2 })
		h.lose()
		h.startPlugin()
		claim(t, h, since, 2*deadline)
	})
	t.Run("the plugin lists it as published", func(t *testing.T) {
		h, _, mark := begin(t, csitest.Fault{Code: codes.DeadlineExceeded, Effect: csitest.EffectNone})
		h.fault(csitest.Fault{Method: csitest.ControllerUnpublish, Effect: csitest.EffectNone})
		h.volctl("volume", "detach", "data", "one")
		if n, nodes := h.calls(mark).Count(csitest.ControllerUnpublish), h.publishedOn("ext/data"); n < 3 || len(nodes) > 0 {
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
			h.register("data", "single-node-writer")
			h.fault(csitest.Fault{Method: csitest.ControllerPublish, Delay: late, Times: -1})
			mark := h.mark()
			h.volctl("volume", "claim", "data", "--alloc", "one", "--no-wait")
			h.await("the call", func() bool { return h.calls(mark).Count(csitest.ControllerPublish) == 1 })
			if killed {
				h.kill()
				h.start()
			}
			h.volctl("volume", "detach", "data", "one")
			h.must(h.cfg.Faults().Clear())
			h.volctl("wait", "--volume", "data", "--for", "free", "--timeout", "60s")
			if nodes := h.publishedOn("ext/data"); len(nodes) > 0 {
				t.Errorf("the volume is free, and published on %q", nodes)
			}
			calls := h.calls(mark).Methods()
			if last := calls[len(calls)-1]; last != csitest.ControllerUnpublish {
				t.Errorf("the last call is %s", last)
			}
			h.await("all calls to end", func() bool {
				return !slices.ContainsFunc(h.calls(mark), func(c csitest.Call) bool { return !c.Ended() })
			})
			if nodes := h.publishedOn("ext/data"); len(nodes) > 0 {
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
			h.volctl("volume", "create", "settled", "--plugin", "rec")
			mark := h.mark()
			h.fault(csitest.Fault{Method: csitest.CreateVolume, Delay: deadline})
			cut := exec.Command(filepath.Join(binDir, "volctl"), "volume", "create", "data", "--plugin", "rec")
			cut.Env = h.env
			h.must(cut.Start())
			h.await("the call", func() bool { return h.calls(mark).Count(csitest.CreateVolume) == 1 })
			began := time.Now()
			h.kill()
			_ = cut.Wait() // the agent is gone, so the command fails
			h.start("rec")

			h.volctl("volume", "delete", "settled", "-y")
			if d := time.Since(began); d > deadline {
				t.Errorf("a volume that is settled waited: %s", d)
			}
			if restarted {
				h.lose()
				h.startPlugin()
				h.volctl("wait", "--plugin", "rec")
			}
			h.volctl("volume", "create", "data", "--plugin", "rec")
			switch d := time.Since(began); {
			case !restarted && d < deadline:
				t.Errorf("the same create was called after %s, while the first one may be at work for %s", d, deadline)
			case restarted && d >= deadline/2:
				t.Errorf("it waited for %s although the plugin was started again", d)
			}
			if n := h.calls(mark).Count(csitest.CreateVolume); n != 2 {
				t.Errorf("CreateVolume was called %d times", n)
			}
		})
	}
}
