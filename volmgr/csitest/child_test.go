package csitest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
)

// TestJournalSurvivesKill kills a plugin process during a call. The next plugin must know all
// earlier calls.
func TestJournalSurvivesKill(t *testing.T) {
	b := newBench(t, full)
	first := b.child()
	b.up("a", "t")
	mark := b.journal().Calls.Mark()
	b.inject(Fault{Method: NodePublish, Hang: true})
	done := make(chan error, 1)
	go func() { done <- b.publish("a", "u") }()
	_, err := AwaitCalls(b.ctx(), b.cfg.JournalPath(), func(cs Calls) bool { return cs.Since(mark).Count(NodePublish) == 1 })
	b.must(err)
	b.must(first.Kill())
	b.gone(first)
	b.code(codes.Unavailable, <-done)

	second := b.child() // replaces the socket file that the first plugin left
	if !isMount(b.target("t")) {
		t.Error("the mount did not outlive the plugin")
	}
	b.must(b.publish("a", "u")) // does not hang again, because the fault has already been used
	b.must(b.unpublish("a", "u"))
	b.noViolations()
	_ = b.unstage("a")
	j := b.journal()
	if len(j.Violations) != 1 || j.Violations[0].Rule != RuleOrder || j.Starts != 2 {
		t.Errorf("%d starts, violations: %v", j.Starts, j.Violations)
	}
	publishes := j.Calls.Only(NodePublish)
	if len(publishes) != 3 || publishes[1].Ended() || publishes[1].Plugin != first.Pid || publishes[2].Plugin != second.Pid || publishes[2].Caller != os.Getpid() {
		t.Errorf("calls:\n%s", j.Calls)
	}
	b.must(second.Signal(unix.SIGTERM))
	if st, err := second.Wait(); err != nil || st.ExitCode() != 0 {
		t.Errorf("after SIGTERM: %v, %v", st, err)
	}
	if _, err := os.Lstat(b.dir + "/csi.sock"); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestChildCrashes(t *testing.T) {
	b := newBench(t, full)
	for _, when := range []Moment{BeforeEffect, AfterEffect} {
		p := b.child()
		b.must(b.attach("a"))
		b.inject(Fault{Method: NodeStage, Crash: when})
		b.code(codes.Unavailable, b.stage("a"))
		if sig := b.gone(p); sig != unix.SIGKILL {
			t.Errorf("ended by signal %v", sig)
		}
		if got := isMount(b.staging("a")); got != (when == AfterEffect) {
			t.Errorf("%s the effect: mounted %v", when, got)
		}
	}
	b.child()
	b.must(b.stage("a")) // succeeds, because both faults have already been used
	b.noViolations()
}

func TestChildEndsWithItsBase(t *testing.T) {
	b := newBench(t, full)
	p := b.child()
	b.must(os.RemoveAll(b.cfg.Base))
	if sig := b.gone(p); sig != 0 {
		t.Errorf("ended by signal %v", sig)
	}
}

func TestChildWithoutEndpoint(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	env, err := Config{Base: t.TempDir()}.Environment()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestKillCaller checks that the plugin can kill the process that called it.
func TestKillCaller(t *testing.T) {
	for _, when := range []Moment{BeforeEffect, AfterEffect} {
		t.Run(string(when), func(t *testing.T) {
			b := start(t, Config{Stage: true, AnyVolume: true})
			b.inject(Fault{Method: NodeStage, KillCaller: when, Effect: map[Moment]Effect{BeforeEffect: EffectNone}[when]})
			b.must(os.Mkdir(b.staging("a"), 0o711))
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), envCaller+"="+b.endpoint(), "CSITEST_TEST_STAGING="+b.staging("a"))
			b.must(cmd.Start())
			if sig := b.gone(cmd.Process); sig != unix.SIGKILL {
				t.Errorf("ended by signal %v", sig)
			}
			calls, err := AwaitCalls(b.ctx(), b.cfg.JournalPath(), func(cs Calls) bool { return len(cs) == 1 && cs[0].Ended() })
			b.must(err)
			if !calls[0].Late || calls[0].Caller != cmd.Process.Pid {
				t.Errorf("call: %+v", calls[0])
			}
			if got := isMount(b.staging("a")); got != (when == AfterEffect) {
				t.Errorf("mounted: %v", got)
			}
			b.must(b.stage("a"))
			b.noViolations()
		})
	}
}

// stageAsCaller makes a call from a process that the plugin kills during the call.
func stageAsCaller(endpoint string) int {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		defer conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, err = csi.NewNodeClient(conn).NodeStageVolume(ctx,
			&csi.NodeStageVolumeRequest{VolumeId: "a", StagingTargetPath: os.Getenv("CSITEST_TEST_STAGING"), VolumeCapability: writer()})
	}
	fmt.Fprintln(os.Stderr, "the caller is still alive:", err)
	return 1
}
