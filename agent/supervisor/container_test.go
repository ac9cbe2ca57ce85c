package supervisor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/supervisor"
)

// runtime is a fake docker for one container, which is an ordinary process. Files in its directory
// control the fake: "deaf" makes commands fail, "stuck" makes them hang, and "pid" makes the fake
// report the pid of another process.
const runtime = `#!/bin/sh
cd %s || exit 1
echo "$@" >> calls
test -e "stuck-$1" && { trap '' TERM; exec sleep 1000; }
case "$1" in
run)
  labels= prev=
  for arg; do
    test "$prev" = --label && labels="$labels,\"${arg%%%%=*}\":\"${arg#*=}\""
    prev=$arg
  done
  echo "${labels#,}" > labels
  sleep 1000 > /dev/null 2>&1 &
  echo $! > container
  test -e deafen && : > deaf
  echo 0123456789abcdef;;
container)
  test -e deaf && { echo 'Error: out of order' >&2; exit 1; }
  test -e container || { echo 'Error: No such container: x' >&2; exit 1; }
  pid=$(cat container)
  status=exited
  test -e /proc/$pid && ! grep -q ') Z' /proc/$pid/stat && status=running
  test -e pid && pid=$(cat pid)
  echo "[{\"Id\":\"0123456789abcdef\",\"State\":{\"Status\":\"$status\",\"Pid\":$pid},\"Config\":{\"Labels\":{$(cat labels)}}}]";;
stop)
  test -e deaf-stop && { echo 'Error: out of order' >&2; exit 1; }
  kill -9 $(cat container);;
rm) rm container;;
esac
exit 0
`

// contained makes the plugin "fake" run in a container of the fake docker. It returns the directory
// with the files that control the fake docker.
func (b *bench) contained() string {
	b.t.Helper()
	dir := filepath.Join(b.dir, "rt")
	if err := os.Mkdir(dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "docker"), fmt.Appendf(nil, runtime, dir), 0o700); err != nil {
		b.t.Fatal(err)
	}
	b.t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	b.t.Cleanup(func() {
		if pid := b.container(); pid != 0 {
			kill(b.t, pid)
		}
	})
	b.opts.Backoff = supervisor.Backoff{Base: time.Hour, Max: time.Hour}
	b.file("fake.yaml", fmt.Sprintf("id: fake\ncontainer:\n  runtime: docker\n  image: i\n  env: {%s: %s}\n", envRun, os.Getenv(envRun)))
	return dir
}

// container returns the pid of the container's process, or 0 if there is none.
func (b *bench) container() int {
	data, err := os.ReadFile(filepath.Join(b.dir, "rt", "container"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		b.t.Fatal(err)
	}
	return pid
}

// touch writes a file that changes the behaviour of the fake docker.
func (b *bench) touch(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, "rt", name), []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// TestStopHalfStarted checks a container that was started although the runtime reported nothing
// about it. When the plugin is stopped, the agent must end this container.
func TestStopHalfStarted(t *testing.T) {
	b := newBench(t)
	dir := b.contained()
	b.touch("deafen", "")
	b.start()
	b.awaitThat("fake", "out of order", func(st supervisor.Status) bool {
		return st.State == supervisor.BackingOff && strings.Contains(st.Reason, "out of order")
	})
	pid := b.container()
	if !alive(pid) {
		t.Fatal("the container does not run")
	}
	for _, name := range []string{"deaf", "deafen"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	b.stopped()
	if alive(pid) || b.container() != 0 {
		t.Error("the plugin is stopped, and its container runs")
	}
}

// stopped stops the plugin and waits until it has ended.
func (b *bench) stopped() {
	b.t.Helper()
	if err := b.sup.Stop("fake", false); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	if err := b.sup.AwaitStopped(ctx, "fake"); err != nil {
		b.t.Fatal(err)
	}
}

// TestEndedContainerOfARemovedFile checks a plugin whose file was removed. The agent must remove
// the plugin's container if the container has ended, even if it ended while no agent ran.
func TestEndedContainerOfARemovedFile(t *testing.T) {
	b := newBench(t)
	b.contained()
	b.start()
	b.awaitThat("fake", "running", func(st supervisor.Status) bool { return st.PID != 0 })
	b.stop()
	kill(t, b.container())
	if err := os.Remove(filepath.Join(b.dir, "etc", "fake.yaml")); err != nil {
		t.Fatal(err)
	}
	b.start()
	await(t, "the plugin to be no more", func() bool { _, err := b.sup.Status("fake"); return err != nil })
	await(t, "the container to be removed", func() bool { return b.container() == 0 })
}

// TestProcessOfAnotherHost checks a runtime that is on another host or in a virtual machine. The
// pid that it reports belongs to an unrelated process on this host, which the agent must not use.
func TestProcessOfAnotherHost(t *testing.T) {
	b := newBench(t)
	b.contained()
	other, _ := bystander(t)
	b.touch("pid", strconv.Itoa(other))
	b.touch("deaf-stop", "")
	b.start()
	st := b.awaitThat("fake", "seen through", func(st supervisor.Status) bool {
		return st.PID != 0 || st.State == supervisor.BackingOff
	})
	if st.PID != 0 || !strings.Contains(st.Reason, "cannot find process") {
		t.Errorf("process %d passes for the container's: %+v", other, st)
	}
	b.stopped()
	if !alive(other) {
		t.Error("somebody else's process was killed")
	}
}

// TestEndDuringRemoval checks that the agent ends soon, even if the runtime hangs while the agent
// removes a container.
func TestEndDuringRemoval(t *testing.T) {
	b := newBench(t)
	dir := b.contained()
	b.touch("stuck-rm", "")
	b.start()
	b.awaitThat("fake", "running", func(st supervisor.Status) bool { return st.PID != 0 })
	kill(t, b.container())
	await(t, "the removal", func() bool {
		calls, err := os.ReadFile(filepath.Join(dir, "calls"))
		return err == nil && strings.Contains(string(calls), "rm --volumes")
	})
	began := time.Now()
	b.stop()
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the end took %s", took)
	}
}
