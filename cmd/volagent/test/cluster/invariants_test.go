package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// These are the invariants of a cluster, with the tests that prove them. In all tests with a rig or a
// field, the SAN judges I1, I6 and I11 by the attachments, writes and calls that reach it.
//
//	I1   at most one host writes a single-writer volume        TestHistory, TestModes, TestPause, TestPauseInCall, TestPartition, TestCrash
//	I2   a hold survives the loss of a minority of etcd        TestMinority, TestCrash
//	I3   no takeover without recorded proof                    TestReplaceAttached, TestReplace, TestCopiedHost, TestTakeover, TestFenceByPerson, TestFenceByHook, TestFenceHookFails, TestFenceByReservation, TestTakeoverOfBlockDevice, TestLyingDriver, TestNoTakeover
//	I4   after all faults, holds = mounts = attachments        TestPartition, TestPause, TestCrash, TestOutageUnderLoad, TestQuarantine, TestAllHostsLost, TestReturnOnFullDisk, TestFenceOnFullDisk
//	I5   claims under a hold need no etcd, and are as fast     TestOutageUnderLoad, TestOutage, TestPartition; BenchmarkLoadShared
//	I6   a limit of attachments is never exceeded              TestLimit
//	I7   the tokens of one volume only grow                    TestHistory, TestMinority
//	I8   every waiting claim ends                              TestCompaction, TestPauseInCall, TestHistory, TestPartition, TestOutageUnderLoad
//	I9   no update is lost over a compaction                   TestCompaction, TestLostHold
//	I10  one party undoes each interrupted step                TestCrash, TestFencerKilled
//	I11  at most one host calls the controller for a volume    TestPauseInCall, TestCrash, and the SAN in all tests

// TestMinority kills one member of etcd after the other, also the leader, each time right after a claim
// was acknowledged. The hold remains with its token, and another host does not get the volume. (I1, I2,
// I7)
func TestMinority(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, 2, san.Config{Attach: true, Stage: true})
	a, b := r.hosts[0], r.hosts[1]
	r.share("db", mode("single-node-multi-writer"))
	last := ""
	for _, leads := range []bool{true, false} {
		path := claim(a, "db", "web", "--timeout", "60s")
		victim := r.etcd.Leader()
		if !leads {
			victim = (victim + 1) % 3
		}
		r.etcd.Kill(victim)
		a.Must(write(a, path, "f", "x"))

		var token string
		b.Await("the hold of h1 on h2", func() bool {
			token = ""
			if v, ok := volumeOn(b, "db"); ok && len(v.Holds) == 1 && v.Holds[0].Host == "h1" {
				token = v.Holds[0].Token
			}
			return token != ""
		})
		refused(t, b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "10s").Err, `held by host "h1"`)
		if v := statusOf(b); len(v.Holds) != 1 || v.Holds[0].Token != token || !tokenBefore(last, token) {
			t.Errorf("after the loss of a member, the holds are %+v; the token was %s, and before %s", v.Holds, token, last)
		}
		last = token
		r.etcd.Start(victim)
		a.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	}
	r.awaitGone()
	r.expectFree("db")
}

// tokenBefore reports whether a token, as the API shows it, is lower than another one. The empty token
// is lower than all others.
func tokenBefore(a, b string) bool {
	parse := func(s string) (t [2]int64) {
		_, _ = fmt.Sscanf(s, "%d.%d", &t[0], &t[1]) // an empty token stays 0
		return t
	}
	x, y := parse(a), parse(b)
	return slices.Compare(x[:], y[:]) < 0
}

// TestLimit claims more volumes at once than the plugin can attach to a host. The host never has more
// than this number, on the SAN too, and a free place is used again. Other hosts have their own limit.
// (I6)
func TestLimit(t *testing.T) {
	t.Parallel()
	const limit, volumes, rounds = 2, 5, 3
	r := newRig(t, 1, 2, san.Config{Attach: true, Stage: true, MaxVolumes: limit})
	for i := range volumes {
		r.share(fmt.Sprintf("v%d", i), mode("multi-node-multi-writer"))
	}
	for range rounds {
		var work sync.WaitGroup
		results := make([][volumes]error, len(r.hosts))
		for i, h := range r.hosts {
			client := apiclient.New(h.Socket())
			t.Cleanup(client.Close)
			for v := range volumes {
				work.Go(func() {
					_, results[i][v] = client.ClaimVolume(context.Background(), fmt.Sprintf("v%d", v), "web", api.ClaimRequest{}, 20*time.Second)
				})
			}
		}
		work.Wait()
		for i, h := range r.hosts {
			got := 0
			for v, err := range results[i] {
				switch {
				case err == nil:
					got++
					h.Volctl("volume", "detach", fmt.Sprintf("v%d", v), "web")
				case harness.CodeOf(err) != api.CodeRefused || !strings.Contains(err.Error(), "can have 2 volumes"):
					t.Errorf("on %s, the claim of v%d ended with %v", h.Dir, v, err)
				}
			}
			if got != limit {
				t.Errorf("host h%d got %d volumes", i+1, got)
			}
		}
	}
	r.awaitGone()
}
