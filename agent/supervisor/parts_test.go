package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// part writes the plugin file of one part of the plugin "fake". The part provides the services that
// belong to its type. The result controls the behaviour of the part.
func (b *bench) part(file, kind, instance, more string) behaviour {
	b.t.Helper()
	fake := behaviour(filepath.Join(b.dir, strings.TrimSuffix(file, ".yaml")))
	if err := os.MkdirAll(string(fake), 0o700); err != nil {
		b.t.Fatal(err)
	}
	if kind == "controller" || kind == "monolith" {
		b.set("controller", "")
		if err := os.Rename(string(b.fake)+"/controller", string(fake)+"/controller"); err != nil {
			b.t.Fatal(err)
		}
	}
	text := strings.ReplaceAll(b.fakeFile("", more), string(b.fake)+"\n", string(fake)+"\n")
	if kind != "" {
		text += "type: " + kind + "\n"
	}
	if instance != "" {
		text += "instance: " + instance + "\n"
	}
	b.file(file, text)
	return fake
}

// partIs waits until a part is in the given state. The argument name is the part's name in events,
// for example "controller a".
func (b *bench) partIs(name string, state supervisor.State) supervisor.Status {
	b.t.Helper()
	var st supervisor.Status
	await(b.t, name+" "+string(state), func() bool {
		whole, err := b.sup.Status("fake")
		for _, p := range whole.Parts {
			if strings.TrimSuffix(p.Type+" "+p.Instance, " ") == name && p.State == state {
				st = p
				return true
			}
		}
		return err != nil
	})
	if st.State != state {
		whole, err := b.sup.Status("fake")
		b.t.Fatalf("%s is not %s: %+v, %v", name, state, whole, err)
	}
	return st
}

// publish calls ControllerPublishVolume for a volume, and returns the pid of the process that
// answered.
func (b *bench) publish(external string) (pid int, err error) {
	c, err := b.sup.Controller("fake", external)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	out, err := call.Do(ctx, c, call.ControllerPublishRequest{ExternalID: external, NodeID: "n", Capability: call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem}})
	c.Done(err)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out["pid"])
}

// trio returns a bench whose plugin has a node part and the controllers a and b. All three parts
// are ready.
func trio(t *testing.T, more string) *bench {
	t.Helper()
	b := newBench(t)
	b.part("node.yaml", "node", "", more)
	b.part("a.yaml", "controller", "a", more)
	b.part("b.yaml", "controller", "b", more)
	b.start()
	for _, name := range []string{"node", "controller a", "controller b"} {
		b.partIs(name, supervisor.Ready)
	}
	return b
}

// TestParts checks a plugin with three processes, each with its own socket. Node calls must go to
// the node part. Controller calls must alternate between the ready controllers. The next agent must
// find all three processes.
func TestParts(t *testing.T) {
	b := trio(t, "health: {interval: 1h}\n")
	node, a, other := b.partIs("node", supervisor.Ready), b.partIs("controller a", supervisor.Ready), b.partIs("controller b", supervisor.Ready)
	if node.Socket != b.dir+"/r/plugins/fake/csi.sock" || a.Socket != b.dir+"/r/plugins/fake~2Fcontroller~2Fa/csi.sock" || other.Socket == a.Socket {
		t.Errorf("sockets %s, %s, %s", node.Socket, a.Socket, other.Socket)
	}
	st := b.status("fake")
	if st.State != supervisor.Ready || st.Reason != "" || st.Type != "node+controller" || st.PID != 0 || len(st.Parts) != 3 ||
		st.Nodes != (supervisor.Count{Healthy: 1, Expected: 1}) || st.Controllers != (supervisor.Count{Healthy: 2, Expected: 2}) {
		t.Errorf("status %+v", st)
	}
	v := b.sup.View("fake")
	if !v.Ready || v.Apart == nil || v.Info.NodeID != "node-1" || v.Info.MaxVolumes != 3 || !v.Info.HasNode || !v.Info.HasController ||
		!v.Info.Caps.Attach || v.Info.Driver != "fake.test" || len(v.Info.ControllerCaps) != 1 {
		t.Errorf("view %+v", v)
	}
	asked := map[int]int{}
	for i := range 10 {
		pid, err := b.publish(fmt.Sprint("v", i))
		must(t, err)
		asked[pid]++
	}
	if len(asked) != 2 || asked[a.PID] != 5 || asked[other.PID] != 5 {
		t.Errorf("calls by process: %v; the controllers are %d and %d", asked, a.PID, other.PID)
	}

	b.set("exit", "") // switch on "exit" for the whole plugin, then move the file to one part
	must(t, os.Rename(string(b.fake)+"/exit", b.dir+"/a/exit"))
	kill(t, a.PID)
	b.partIs("controller a", supervisor.BackingOff)
	for range 3 {
		if pid, err := b.publish("x"); err != nil || pid != other.PID {
			t.Errorf("process %d answered, %v; want %d", pid, err, other.PID)
		}
	}
	st = b.status("fake")
	if st.State != supervisor.Ready || !strings.Contains(st.Reason, "controller a is ") || st.Controllers.Healthy != 1 || !b.sup.View("fake").Ready {
		t.Errorf("with one controller down: %+v", st)
	}
	must(t, os.Rename(b.dir+"/a/exit", b.dir+"/b/exit"))
	a = b.partIs("controller a", supervisor.Ready)

	b.stop()
	b.start()
	for name, pid := range map[string]int{"node": node.PID, "controller a": a.PID, "controller b": other.PID} {
		if now := b.partIs(name, supervisor.Ready); now.PID != pid {
			t.Errorf("the next agent made process %d of %s, which was %d", now.PID, name, pid)
		}
	}
}

// TestPartsDown checks that node calls are possible while all controllers are down, and that
// controller calls are possible while the node part is down. If all controllers are down, the error
// of a controller call must name each of them.
func TestPartsDown(t *testing.T) {
	b := trio(t, "health: {interval: 1h}\n")
	must(t, b.sup.Stop("fake", false, supervisor.Only{Type: "controller", Instance: "b"}))
	must(t, b.sup.AwaitStopped(within(t), "fake", supervisor.Only{Instance: "b"}))
	if _, err := b.publish("v"); err != nil {
		t.Errorf("with one of two: %v", err)
	}
	b.set("exit", "")
	must(t, os.Rename(string(b.fake)+"/exit", b.dir+"/a/exit"))
	kill(t, b.partIs("controller a", supervisor.Ready).PID)
	b.partIs("controller a", supervisor.BackingOff)
	_, err := b.publish("v")
	if !errors.Is(err, volume.ErrPluginUnavailable) || !strings.Contains(err.Error(), `no controller of plugin "fake" is ready: controller a is `) ||
		!strings.Contains(err.Error(), "; controller b is stopped: on request") {
		t.Errorf("with none: %v", err)
	}
	if _, err := b.sup.Client("fake"); err != nil {
		t.Errorf("a node call with no controller: %v", err)
	}
	v := b.sup.View("fake")
	if v.Ready || !v.ReadyFor(call.NodeUnpublish) || v.ReadyFor(call.ControllerPublish) || !v.Info.Caps.Attach {
		t.Errorf("view %+v", v)
	}
	must(t, os.Rename(b.dir+"/a/exit", b.dir+"/node/exit"))
	must(t, b.sup.Start("fake"))
	b.partIs("controller a", supervisor.Ready)
	was := b.sup.View("fake").Incarnation
	kill(t, b.partIs("controller a", supervisor.Ready).PID)
	b.partIs("controller b", supervisor.Ready)
	if now := b.sup.View("fake").Incarnation; now != was {
		t.Errorf("a controller was started again, and the node's incarnation went from %d to %d", was, now)
	}
	kill(t, b.partIs("node", supervisor.Ready).PID)
	b.partIs("node", supervisor.BackingOff)
	if _, err := b.sup.Client("fake"); !errors.Is(err, volume.ErrPluginUnavailable) || !strings.Contains(err.Error(), `the node part of plugin "fake" is `) {
		t.Errorf("a node call with no node part: %v", err)
	}
	if _, err := b.publish("v"); err != nil {
		t.Errorf("a controller call with no node part: %v", err)
	}
	must(t, os.Remove(b.dir+"/node/exit"))
	b.partIs("node", supervisor.Ready) // the test must not end while a part is starting
}

// TestGivenUpCallBinds checks a controller call that the agent has abandoned. The controller may
// still process this call. Until the controller has ended, the agent must send all calls about the
// same volume to it.
func TestGivenUpCallBinds(t *testing.T) {
	b := trio(t, "health: {interval: 1h}\ntimeouts: {controller: 1m}\n")
	a := b.partIs("controller a", supervisor.Ready)
	for _, dir := range []string{"a", "b"} {
		must(t, os.WriteFile(filepath.Join(b.dir, dir, "late"), nil, 0o600))
	}
	c, err := b.sup.Controller("fake", "v")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = call.Do(ctx, c, call.ControllerPublishRequest{ExternalID: "v", NodeID: "n", Capability: call.Capability{Access: call.SingleNodeWriter}})
	var made *volume.CallError
	if !errors.As(err, &made) || made.Answered {
		t.Fatalf("a call with no answer: %v", err)
	}
	c.Done(err)
	for _, dir := range []string{"a", "b"} {
		must(t, os.Remove(filepath.Join(b.dir, dir, "late")))
	}
	asked := map[int]int{}
	for i := range 4 {
		pid, err := b.publish(fmt.Sprint("other", i))
		must(t, err)
		asked[pid]++
	}
	if len(asked) != 2 {
		t.Errorf("calls about other volumes went to %v", asked)
	}
	// When the controller with the abandoned call is stopped, calls must go to the other
	// controller.
	first := a
	if c, err = b.sup.Controller("fake", "v"); err != nil {
		t.Fatal(err)
	}
	out, err := call.Do(within(t), c, call.ControllerPublishRequest{ExternalID: "v", NodeID: "n", Capability: call.Capability{Access: call.SingleNodeWriter}})
	must(t, err)
	if out["pid"] != strconv.Itoa(first.PID) {
		first = b.partIs("controller b", supervisor.Ready)
	}
	// until this controller has ended, all calls about the volume must go to it
	for range 3 {
		again, err := b.sup.Controller("fake", "v")
		must(t, err)
		if again.Client != c.Client {
			t.Fatal("another controller was asked while the first may be at work")
		}
	}
	must(t, b.sup.Stop("fake", true, supervisor.Only{Instance: first.Instance}))
	must(t, b.sup.AwaitStopped(within(t), "fake", supervisor.Only{Instance: first.Instance}))
	if pid, err := b.publish("v"); err != nil || pid == first.PID {
		t.Errorf("after its end: process %d, %v", pid, err)
	}
}

// TestUnsentCallFreesNobody checks a call that fails before it reaches the controller. Its failure
// does not show that an earlier abandoned call about the same volume has ended.
func TestUnsentCallFreesNobody(t *testing.T) {
	b := trio(t, "health: {interval: 1h}\nmax_in_flight: 1\ntimeouts: {controller: 1m}\n")
	for _, dir := range []string{"a", "b"} {
		must(t, os.WriteFile(filepath.Join(b.dir, dir, "late"), nil, 0o600))
	}
	publish := func(c supervisor.Controller, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := call.Do(ctx, c, call.ControllerPublishRequest{ExternalID: "v", NodeID: "n", Capability: call.Capability{Access: call.SingleNodeWriter}})
		c.Done(err)
		return err
	}
	first, err := b.sup.Controller("fake", "v")
	must(t, err)
	if err := publish(first, 50*time.Millisecond); err == nil {
		t.Fatal("a call that is not answered has succeeded")
	}
	// Use up the limit of one call at a time with a call about another volume.
	other, err := b.sup.Controller("fake", "v")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, err := call.Do(ctx, other, call.ControllerPublishRequest{ExternalID: "w", NodeID: "n", Capability: call.Capability{Access: call.SingleNodeWriter}})
		if err == nil {
			t.Error("a call that is not answered has succeeded")
		}
	}()
	defer func() { cancel(); <-over }()
	var call *volume.CallError
	await(t, "the slot to be taken", func() bool {
		err := publish(first, 50*time.Millisecond)
		return errors.As(err, &call) && strings.Contains(call.Message, "busy")
	})
	for range 4 {
		again, err := b.sup.Controller("fake", "v")
		must(t, err)
		if again.Client != first.Client {
			t.Fatal("another controller was asked while the first may be at work")
		}
	}
}

// TestSparePart checks which parts may be stopped while volumes are in use. A controller may be
// stopped while another one is ready. The last controller and the node part must keep running.
func TestSparePart(t *testing.T) {
	b := trio(t, "health: {interval: 1h}\n")
	b.inUse.Store(true)
	one := func(kind, instance string) supervisor.Only { return supervisor.Only{Type: kind, Instance: instance} }
	refused := func(only supervisor.Only, words, command string) {
		t.Helper()
		err := b.sup.Restart("fake", false, only)
		if !errors.Is(err, volume.ErrRefused) || !strings.Contains(err.Error(), words) || hint(err) != command {
			t.Errorf("%+v: %v, hint %q", only, err, hint(err))
		}
	}
	refused(one("node", ""), `the node part of plugin "fake" is in use, by "data"; mounts`, "volctl plugin restart fake --type node -y")
	refused(one("controller", ""), `of plugin "fake" is in use, by "data"; no other controller would be ready`, "volctl plugin restart fake --type controller -y")
	refused(one("", ""), `the node part of plugin "fake" is in use`, "volctl plugin restart fake -y")
	if err := b.sup.Restart("fake", false, one("controller", "c")); !errors.Is(err, volume.ErrNotFound) || !strings.Contains(err.Error(), "it has node, controller a, controller b") {
		t.Errorf("a part that is not: %v", err)
	}

	a, node := b.partIs("controller a", supervisor.Ready), b.partIs("node", supervisor.Ready)
	asked := time.Now()
	must(t, b.sup.Restart("fake", false, one("controller", "a")))
	must(t, b.sup.AwaitStarted(within(t), "fake", asked, one("controller", "a")))
	if now := b.partIs("controller a", supervisor.Ready); now.PID == a.PID || alive(a.PID) || b.partIs("node", supervisor.Ready).PID != node.PID {
		t.Errorf("restarted: %+v", now)
	}
	must(t, b.sup.Stop("fake", false, one("", "a")))
	must(t, b.sup.AwaitStopped(within(t), "fake", one("", "a")))
	refused(one("controller", "b"), `controller "b" of plugin "fake" is in use`, "volctl plugin restart fake --type controller --instance b -y")

	// A changed file must wait, too, until another controller is ready.
	other := b.partIs("controller b", supervisor.Ready)
	b.part("b.yaml", "controller", "b", "health: {interval: 2h}\n")
	b.reload()
	await(t, "the change to wait", func() bool { return b.partIs("controller b", supervisor.Ready).Wanted["health.interval"] == "2h0m0s" })
	if now := b.partIs("controller b", supervisor.Ready); now.PID != other.PID || !strings.Contains(now.Pending, "another controller is ready") {
		t.Errorf("the last controller: %+v", now)
	}
	must(t, b.sup.Start("fake", one("", "a")))
	await(t, "the change", func() bool { return b.partIs("controller b", supervisor.Ready).PID != other.PID })
	if now := b.partIs("controller b", supervisor.Ready); now.Running["health.interval"] != "2h0m0s" || len(now.Wanted) != 0 {
		t.Errorf("after the change: %+v", now)
	}

	// When a controller's file is removed, the controller must end if no volume needs it.
	must(t, os.Remove(filepath.Join(b.dir, "etc/a.yaml")))
	b.reload()
	await(t, "the end of controller a", func() bool { return len(b.status("fake").Parts) == 2 })
	must(t, os.Remove(filepath.Join(b.dir, "etc/b.yaml")))
	b.reload()
	await(t, "the change to wait", func() bool { return b.partIs("controller b", supervisor.Ready).Pending != "" })
	b.inUse.Store(false)
	b.sup.Released("fake")
	await(t, "the end of controller b", func() bool { return len(b.status("fake").Parts) == 1 })
	if v := b.sup.View("fake"); v.ReadyFor(call.ControllerUnpublish) || !v.ReadyFor(call.NodeUnpublish) ||
		v.Lacks("fake", call.ControllerUnpublish) != `plugin "fake" has no controller part` {
		t.Errorf("without controllers: %+v", v)
	}
}

// TestPartLogs checks that each line of the log begins with the name of its part.
func TestPartLogs(t *testing.T) {
	b := trio(t, "")
	lines, err := b.sup.LogTail("fake", 1)
	want := []string{"node | fake plugin started, secret is ", "controller a | fake plugin started, secret is ", "controller b | fake plugin started, secret is "}
	if err != nil || !slices.Equal(lines, want) {
		t.Errorf("%q, %v", lines, err)
	}
	if lines, err = b.sup.LogTail("fake", 1, supervisor.Only{Instance: "b"}); err != nil || !slices.Equal(lines, want[2:]) {
		t.Errorf("of one: %q, %v", lines, err)
	}
}

// TestViewCostsNoMemory checks that View allocates no memory, because the agent calls it often for
// each volume.
func TestViewCostsNoMemory(t *testing.T) {
	b := newBench(t)
	b.file("fake.yaml", b.fakeFile("", "health: {interval: 1h}\n"))
	b.start()
	b.await("fake", supervisor.Ready)
	if n := testing.AllocsPerRun(100, func() { b.sup.View("fake") }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
