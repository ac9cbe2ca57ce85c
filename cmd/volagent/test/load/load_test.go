package load_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

func TestMain(m *testing.M) {
	if san.IsChild() {
		os.Exit(san.Main())
	}
	harness.Main(m, harness.Child{Env: loadRole, Run: loadChild}, harness.Child{Env: keyWatcher, Run: runKeyWatcher})
}

// samples contains the measured durations of one kind of operation.
type samples []time.Duration

func (s *samples) time(r *rig, what func(int) error, i int) {
	start := time.Now()
	err := what(i)
	*s = append(*s, time.Since(start))
	r.Must(err)
}

func (s samples) at(q float64) time.Duration {
	return slices.Sorted(slices.Values(s))[int(q*float64(len(s)-1))]
}

func (s samples) median() time.Duration { return s.at(0.5) }

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// BenchmarkLoadLatency claims and detaches one volume at a time. For comparison, it makes the same
// CSI calls directly and commits the same amount of data, in turn with the claims. It reports the
// medians.
func BenchmarkLoadLatency(b *testing.B) {
	for _, attach := range []bool{false, true} {
		b.Run(fmt.Sprintf("attach=%v", attach), func(b *testing.B) {
			r := newRig(b, &loadPlugin{Attach: attach})
			r.startReady()
			r.register(1)
			r.Must(r.claim(0))
			r.Must(r.release(0))
			rounds := 300 * b.N
			var commit, dClaim, dRelease, claim, release samples
			was, commits := r.calls(), r.commits()
			b.ResetTimer()
			for range rounds {
				commit.time(r, r.commitOnce, 0)
				dClaim.time(r, r.directClaim, 0)
				claim.time(r, r.claim, 0)
				commit.time(r, r.commitOnce, 0)
				dRelease.time(r, r.directRelease, 0)
				release.time(r, r.release, 0)
			}
			b.StopTimer()
			for name, s := range map[string]samples{"commit": commit, "claim": claim, "release": release, "direct-claim": dClaim, "direct-release": dRelease} {
				b.ReportMetric(micros(s.median()), name+"-µs")
				b.ReportMetric(micros(s.at(0.99)), name+"-p99-µs")
			}
			perRound := float64(r.commits()-commits) / float64(rounds)
			b.ReportMetric(perRound, "commits/round")
			title := map[bool]string{false: "one at a time", true: "one at a time, with a controller"}[attach]
			releaseCommits := 2
			if attach {
				releaseCommits = 3
			}
			over(b, title+", claim", claim, dClaim, commit, 2)
			over(b, title+", release", release, dRelease, commit, releaseCommits)
			verdict(b, title+", commits of a claim and its release", perRound/float64(2+releaseCommits), "%.2f, at most %d", perRound, 2+releaseCommits)
			r.oncePer(rounds, was, title)
			r.end()
		})
	}
}

// over reports the verdict on the median time of a request. The limit is the sum of the median time
// of the direct calls, the time of the given number of commits, and 1 ms.
func over(b *testing.B, title string, took, direct, commit samples, commits int) {
	own := took.median() - direct.median() - time.Duration(commits)*commit.median()
	b.Logf("%s: own time %s", title, own)
	verdict(b, title, float64(own)/float64(time.Millisecond), "%s = plugin %s + %d commits of %s + %s, at most 1ms", round(took.median()), round(direct.median()), commits, round(commit.median()), round(own))
}

func round(d time.Duration) time.Duration { return d.Round(time.Microsecond) }

// oncePer checks that the agent made each CSI call exactly once per claim.
func (r *rig) oncePer(claims int, was map[string]int, title string) {
	r.T.Helper()
	now, short, words := r.calls(), 0.0, ""
	for _, method := range changing {
		n := now[method] - was[method]
		if n != claims && (n != 0 || r.plugin.Attach) {
			short = 9
			words += fmt.Sprintf(" %s %d,", method, n)
		}
	}
	if words == "" {
		words = " each"
	}
	verdict(r.T, title+", calls of a kind a volume", short, "%d claims,%s exactly once", claims, words)
}

// BenchmarkLoadThroughput claims and detaches many volumes with concurrent requests. For
// comparison, it makes the same CSI calls directly, in turn with the requests.
func BenchmarkLoadThroughput(b *testing.B) {
	for _, delay := range []time.Duration{10 * time.Millisecond, 0} {
		for _, atOnce := range []int{1, 8, 32, 128} {
			b.Run(fmt.Sprintf("call=%s/at-once=%d", delay, atOnce), func(b *testing.B) {
				r := newRig(b, &loadPlugin{Delay: delay})
				r.startReady()
				n, rounds := 16*atOnce, 4*b.N
				if delay == 0 {
					n = max(8*atOnce, 512)
				}
				r.register(n)
				r.turns(b, n, atOnce, 1) // fill connections and caches before the measurement
				was, commits := r.calls(), r.commits()
				b.ResetTimer()
				cpu := r.cpu()
				t := r.turns(b, n, atOnce, rounds)
				b.StopTimer()
				total := float64(n * rounds)
				b.ReportMetric(micros(r.cpu()-cpu)/total, "agent-cpu-µs/round")
				perS := func(d time.Duration) float64 { return total / d.Seconds() }
				b.ReportMetric(perS(t.claim), "claims/s")
				b.ReportMetric(perS(t.release), "releases/s")
				b.ReportMetric(perS(t.dClaim), "direct-claims/s")
				b.ReportMetric(perS(t.dRelease), "direct-releases/s")
				b.ReportMetric(float64(t.claimCommits)/total, "commits/claim")
				b.ReportMetric(float64(r.commits()-commits-t.claimCommits)/total, "commits/release")
				title := fmt.Sprintf("%d at once, %s a call", atOnce, delay)
				if atOnce == 32 && delay > 0 {
					share(b, title+", claims", perS(t.claim), perS(t.dClaim))
					share(b, title+", releases", perS(t.release), perS(t.dRelease))
				}
				if atOnce >= 32 && delay == 0 {
					verdict(b, title+", claims/s", 1500/perS(t.claim), "%.0f, at least 1500 (directly %.0f)", perS(t.claim), perS(t.dClaim))
					verdict(b, title+", releases/s", 1500/perS(t.release), "%.0f, at least 1500 (directly %.0f)", perS(t.release), perS(t.dRelease))
				}
				verdict(b, title+", commits/claim", float64(t.claimCommits)/total/2, "%.2f, at most 2", float64(t.claimCommits)/total)
				r.oncePer(n*rounds, was, title)
				r.end()
			})
		}
	}
}

func share(b *testing.B, title string, got, direct float64) {
	verdict(b, title, 0.8/(got/direct), "%.0f/s, %.0f %% of the plugin driven directly (%.0f/s), at least 80 %%", got, 100*got/direct, direct)
}

// times contains the total time of each kind of operation, and the number of commits for the
// claims.
type times struct {
	claim, release, dClaim, dRelease time.Duration
	claimCommits                     uint64
}

func (r *rig) turns(b *testing.B, n, atOnce, rounds int) (t times) {
	b.Helper()
	for range rounds {
		commits := r.commits()
		t.claim += r.drive(n, atOnce, r.claim)
		t.claimCommits += r.commits() - commits
		t.dClaim += r.drive(n, atOnce, r.directClaim)
		t.release += r.drive(n, atOnce, r.release)
		t.dRelease += r.drive(n, atOnce, r.directRelease)
	}
	return t
}

// BenchmarkLoadSlowDisk delays each commit by 10 ms, so that concurrent claims must share commits.
func BenchmarkLoadSlowDisk(b *testing.B) {
	const atOnce, n, rounds = 128, 512, 4
	r := newRig(b, &loadPlugin{})
	r.tapped = []string{loadCommitDelay + "=10ms"}
	r.startReady()
	r.register(n)
	b.ResetTimer()
	var t times
	for range b.N {
		t = r.turns(b, n, atOnce, rounds)
	}
	perClaim := float64(t.claimCommits) / (n * rounds)
	b.ReportMetric(perClaim, "commits/claim")
	b.ReportMetric(n*rounds/t.claim.Seconds(), "claims/s")
	b.ReportMetric(n*rounds/t.release.Seconds(), "releases/s")
	verdict(b, "128 at once, commits of 10 ms, commits/claim", perClaim/0.25, "%.3f, at most 0.25", perClaim)
	r.end()
}

// BenchmarkLoadRestart kills the agent while claims exist and measures how fast the next agent
// starts.
func BenchmarkLoadRestart(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("claims=%d", n), func(b *testing.B) {
			r := newRig(b, &loadPlugin{})
			r.startReady()
			none := r.settled()
			r.register(n)
			r.drive(n, 32, r.claim)
			var answer, verified samples
			var mutating, all int
			var m memory
			b.ResetTimer()
			for range 3 * b.N {
				r.Kill()
				was := r.calls()
				start := time.Now()
				r.spawn()
				r.answers()
				answer = append(answer, time.Since(start))
				r.verified(n)
				verified = append(verified, time.Since(start))
				m = r.settled()
				more, every := since(r.calls(), was)
				mutating, all = mutating+more, all+every
			}
			b.StopTimer()
			perClaim := float64(m.Anon-none.Anon) / float64(n)
			b.ReportMetric(float64(answer.median().Milliseconds()), "answer-ms")
			b.ReportMetric(float64(verified.median().Milliseconds()), "verified-ms")
			b.ReportMetric(float64(all)/float64(len(answer)), "calls/restart")
			b.ReportMetric(float64(mutating), "mutating-calls")
			b.ReportMetric(float64(m.Anon), "anon-KiB")
			b.ReportMetric(float64(m.File), "file-KiB")
			b.ReportMetric(float64(m.Peak), "peak-KiB")
			b.ReportMetric(perClaim, "anon-KiB/claim")
			if n == 10000 {
				title := fmt.Sprintf("restart with %d claims", n)
				verdict(b, title+", first answer", answer.median().Seconds()/0.5, "%s, at most 500ms", answer.median().Round(time.Millisecond))
				verdict(b, title+", all verified", verified.median().Seconds()/3, "%s, at most 3s", verified.median().Round(time.Millisecond))
				counted(b, title+", mutating calls", float64(mutating), 0, "%d, none allowed", mutating)
				verdict(b, title+", memory a claim", perClaim/4, "%.2f KiB, at most 4", perClaim)
			}
			b.ReportMetric(float64(r.goroutines()), "goroutines")
		})
	}
}

// verified waits until the node status reports n mounted claims. For this status the agent checks
// every mount.
func (r *rig) verified(n int) {
	r.T.Helper()
	r.Await("all claims to be mounted", func() bool {
		node, err := r.api.Node(r.T.Context())
		r.Must(err)
		return node.Mounted == n && node.Claims == n
	})
}

// settled returns the smallest memory use of an idle agent during 12 seconds. Within this time,
// Go's runtime returns unused memory to the kernel.
func (r *rig) settled() memory {
	r.T.Helper()
	least := r.memory()
	for range 24 {
		time.Sleep(500 * time.Millisecond)
		if m := r.memory(); m.Anon < least.Anon {
			least = m
		}
	}
	return least
}

// BenchmarkLoadIdle measures the memory, the open files and the goroutines of an agent whose
// volumes have no claims.
func BenchmarkLoadIdle(b *testing.B) {
	for _, n := range []int{0, 10000} {
		b.Run(fmt.Sprintf("volumes=%d", n), func(b *testing.B) {
			r := newRig(b, &loadPlugin{})
			r.startReady()
			r.register(n)
			r.end()
			b.ResetTimer()
			r.startReady()
			m := r.settled()
			b.ReportMetric(float64(m.Anon), "anon-KiB")
			b.ReportMetric(float64(m.File), "file-KiB")
			fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.Cmd.Process.Pid))
			r.Must(err)
			b.ReportMetric(float64(len(fds)), "open-files")
			b.ReportMetric(float64(r.goroutines()), "goroutines")
		})
	}
}
