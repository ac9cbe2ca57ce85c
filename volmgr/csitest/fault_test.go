package csitest

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func TestEffects(t *testing.T) {
	for name, row := range map[string]struct {
		fault   Fault
		code    codes.Code
		mounted bool
	}{
		"error":                  {Fault{Code: codes.Aborted, Message: "busy"}, codes.Aborted, false},
		"success without effect": {Fault{Effect: EffectNone}, codes.OK, false},
		"effect without success": {Fault{Effect: EffectDone, Code: codes.Unknown}, codes.Unknown, true},
		"a short delay":          {Fault{Delay: 10 * time.Millisecond}, codes.OK, true},
		"not for this volume":    {Fault{Code: codes.Aborted, Volume: "b"}, codes.OK, true},
		"not for this path":      {Fault{Code: codes.Aborted, Path: "/x"}, codes.OK, true},
		"not for this method":    {Fault{Code: codes.Aborted, Method: NodePublish}, codes.OK, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, full)
			b.must(b.attach("a"))
			if row.fault.Method == "" {
				row.fault.Method = NodeStage
			}
			id := b.inject(row.fault)
			err := b.stage("a")
			b.code(row.code, err)
			if row.fault.Message != "" && !strings.Contains(err.Error(), row.fault.Message) {
				t.Errorf("answer: %v", err)
			}
			if got := isMount(b.staging("a")); got != row.mounted {
				t.Errorf("mounted: %v", got)
			}
			applies := row.fault.applies(Call{Method: NodeStage, Volume: "a"})
			if c := b.p.Calls().Only(NodeStage)[0]; (c.Fault == id) != applies || c.Code != row.code.String() {
				t.Errorf("call: %+v", c)
			}
			b.noViolations()
		})
	}
}

// TestPublishWithoutStage checks NodePublish after a NodeStage that had no effect. Like real
// plugins, the plugin must bind-mount the empty staging directory.
func TestPublishWithoutStage(t *testing.T) {
	b := start(t, full)
	b.must(b.attach("a"))
	b.inject(Fault{Method: NodeStage, Effect: EffectNone})
	b.must(b.stage("a"))
	b.must(b.publish("a", "t"))
	b.must(os.WriteFile(b.target("t/lost"), nil, 0o600))
	if _, err := os.Stat(b.staging("a") + "/lost"); err != nil {
		t.Errorf("the target shows something else than the staging directory: %v", err)
	}
	b.noViolations()
	b.must(b.unpublish("a", "t"))
	b.must(os.Remove(b.staging("a") + "/lost"))
}

func TestTimes(t *testing.T) {
	b := start(t, full)
	b.inject(Fault{Times: 2, Code: codes.Aborted}) // without a method, the fault applies to every call that changes something
	_, err := csi.NewIdentityClient(b.conn).Probe(b.ctx(), &csi.ProbeRequest{})
	b.must(err)
	b.code(codes.Aborted, b.attach("a"))
	b.restart() // must not remove the faults
	b.code(codes.Aborted, b.attach("a"))
	b.must(b.attach("a"))

	id := b.inject(Fault{Method: ControllerPublish, Times: -1, Code: codes.ResourceExhausted})
	b.inject(Fault{Method: ControllerPublish, Code: codes.DataLoss})
	for range 3 {
		b.code(codes.ResourceExhausted, b.attach("a"))
	}
	b.must(b.cfg.Faults().Remove(id))
	b.code(codes.DataLoss, b.attach("a"))
	b.must(b.attach("a"))
}

func TestDelayPastTheDeadline(t *testing.T) {
	b := start(t, full)
	b.must(b.attach("a"))
	b.inject(Fault{Method: NodeStage, Delay: 1500 * time.Millisecond})
	b.code(codes.DeadlineExceeded, b.stageWithin(500*time.Millisecond, "a"))
	if isMount(b.staging("a")) {
		t.Error("mounted before the delay is over")
	}
	b.awaitMount(b.staging("a"))
}

func TestMountAppearsLater(t *testing.T) {
	b := start(t, full)
	b.up("a")
	b.inject(Fault{Method: NodePublish, Effect: EffectLater, Delay: 1500 * time.Millisecond})
	b.must(b.publish("a", "t"))
	b.must(b.unpublish("a", "t"))
	if isMount(b.target("t")) {
		t.Error("mounted at once")
	}
	b.awaitMount(b.target("t"))
	b.noViolations()

	b.inject(Fault{Method: NodePublish, Effect: EffectLater, Delay: time.Hour})
	b.must(b.publish("a", "u"))
	b.must(b.p.Close()) // must not wait for the late effect
	if isMount(b.target("u")) {
		t.Error("a closed plugin mounts")
	}
}

func TestHang(t *testing.T) {
	b := start(t, full)
	id := b.inject(Fault{Method: ControllerPublish, Hang: true})
	done := make(chan error, 1)
	go func() { done <- b.attach("a") }()
	b.await(ControllerPublish)
	select {
	case err := <-done:
		t.Fatalf("it does not hang: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	b.must(b.cfg.Faults().Remove(id))
	b.must(<-done)

	b.inject(Fault{Method: ControllerUnpublish, Hang: true})
	go func() { done <- b.detach("a") }()
	b.await(ControllerUnpublish)
	b.must(b.p.Close())
	b.code(codes.Unavailable, <-done)
	if c := b.journal().Calls.Only(ControllerUnpublish)[0]; c.Code != "Unavailable" {
		t.Errorf("call: %s", c)
	}
}

func TestIgnoreReadOnly(t *testing.T) {
	b := start(t, full)
	b.up("a")
	b.inject(Fault{Method: NodePublish, IgnoreReadOnly: true})
	publishWith(b, func(r *csi.NodePublishVolumeRequest) { r.Readonly = true })
	if err := os.WriteFile(b.target("t/x"), nil, 0o600); err != nil {
		t.Errorf("it is read-only: %v", err)
	}
	b.noViolations()
}

func TestCrashInProcess(t *testing.T) {
	for _, when := range []Moment{BeforeEffect, AfterEffect} {
		t.Run(string(when), func(t *testing.T) {
			b := start(t, full)
			b.must(b.attach("a"))
			b.inject(Fault{Method: NodeStage, Crash: when})
			err := b.stage("a")
			b.code(codes.Unavailable, err)
			if strings.Contains(err.Error(), errCrashed.Error()) {
				t.Errorf("a crashed plugin answers: %v", err)
			}
			<-b.p.Crashed()
			if got := isMount(b.staging("a")); got != (when == AfterEffect) {
				t.Errorf("mounted: %v", got)
			}
			if _, err := os.Lstat(b.dir + "/csi.sock"); err != nil {
				t.Errorf("the socket file: %v", err)
			}
			b.restart()
			c := b.p.Calls().Only(NodeStage)[0]
			if c.Ended() {
				t.Errorf("the call was answered: %s", c)
			}
			b.must(b.stage("a")) // succeeds, because the fault has already been used
			b.must(b.publish("a", "t"))
			b.noViolations()
		})
	}
}

func TestControlFile(t *testing.T) {
	b := start(t, full)
	b.must(os.WriteFile(b.cfg.Faults().Path, []byte(`{"faults": [{"id": "x", "method": "ControllerPublishVolume", "delay": "1ms", "code": "DATA_LOSS"}]}`), 0o600))
	b.code(codes.DataLoss, b.attach("a"))
	b.noViolations()
	for _, bad := range []string{
		`{`, `{} x`, `{"fault": []}`, `{"faults": [{"method": "NodeStageVolume"}]}`,
		`{"faults": [{"id": "a", "methods": "x"}]}`, `{"faults": [{"id": "a", "method": "NodeStage"}]}`,
		`{"faults": [{"id": "a", "delay": "x"}]}`, `{"faults": [{"id": "a", "crash": "now"}]}`,
		`{"faults": [{"id": "a", "effect": "x"}]}`, `{"faults": [{"id": "a", "effect": "later"}]}`,
	} {
		b.must(os.WriteFile(b.cfg.Faults().Path, []byte(bad), 0o600))
		before := len(b.p.Violations())
		b.must(b.attach("a"))
		if got := b.p.Violations(); len(got) != before+1 || got[before].Rule != RuleControl {
			t.Errorf("%s: %v", bad, got[before:])
		}
	}
	if _, err := b.cfg.Faults().Add(Fault{Method: "Stage"}); err == nil {
		t.Error("a fault of an unknown method is taken")
	}
}

func TestFaultJSON(t *testing.T) {
	f := Fault{ID: "a", Method: NodeStage, Delay: 1500 * time.Millisecond, Code: codes.Internal, Crash: AfterEffect, Effect: EffectDone, Times: -1}
	raw, err := json.Marshal(f)
	if err != nil || !strings.Contains(string(raw), `"delay":"1.5s"`) {
		t.Fatalf("%s, %v", raw, err)
	}
	var got Fault
	if err := json.Unmarshal(raw, &got); err != nil || got != f {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestCallerInProcessIsSpared(t *testing.T) {
	b := start(t, full)
	b.inject(Fault{Method: ControllerPublish, KillCaller: BeforeEffect})
	b.code(codes.Internal, b.attach("a"))
}

func TestUnmountAll(t *testing.T) {
	b := start(t, full)
	b.up("a", "t", "u")
	b.up("b", "v")
	b.must(os.WriteFile(b.target("t/file"), nil, 0o600))
	b.must(UnmountAll(b.cfg.JournalPath()))
	for _, path := range []string{b.staging("a"), b.staging("b"), b.target("t"), b.target("u"), b.target("v")} {
		if isMount(path) {
			t.Errorf("%s is still mounted", path)
		}
	}
	busy, err := os.Open(b.target("t"))
	b.must(err)
	defer busy.Close()
	b.must(b.stage("a"))
	b.must(b.publish("a", "t"))
	held, err := os.Open(b.target("t/file")) // fails if the data was lost
	b.must(err)
	defer held.Close()
	if err := UnmountAll(b.cfg.JournalPath()); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a busy mount: %v", err)
	}
}
