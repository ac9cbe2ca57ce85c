package containers_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestRuntimeReboot cuts the power while two containers share one volume and a third container uses
// another volume. At the next boot the runtime restarts one container, which must find its data.
// The volume without a running container must lose its claim. Docker runs with live-restore, so the
// agent must not mistake containers of the earlier boot for running ones. Both runtimes are tested
// in the same boots, because the agent needs minutes to be sure that no container remains.
func TestRuntimeReboot(t *testing.T) {
	boot := harness.FakeBoots(t)
	var hosts []served
	for _, name := range []string{"docker", "podman"} {
		s := newServed(t, harness.OwnBox(t, &harness.Box{Name: name, Plain: true, MoreArgs: []string{"--live-restore"}}))
		hosts = append(hosts, s)
		for _, v := range []string{"data", "own"} {
			if out, err := s.create(v, "plugin=local"); err != nil {
				t.Fatal(out)
			}
		}
		s.box.Must(t, slices.Insert(s.runArgs("again", "data:/data"), 1, "--restart=always")...)
		s.run("ro", "data:/data:ro")
		s.run("alone", "own:/own")
		s.sh("again", "echo on > /data/f")
		s.sh("alone", "echo off > /own/f")
		s.holds(s.both()...)
	}
	for _, s := range hosts {
		s.powerCut("again", "ro", "alone")
	}
	boot(t)
	for _, s := range hosts {
		s.Start("local")
		if s.box.Name == "docker" {
			s.Must(s.box.StartDaemon())
		} else { // podman-restart.service runs this command at boot
			s.box.Must(t, "start", "--all", "--filter", "restart-policy=always")
		}
	}
	for _, s := range hosts {
		s.reaped(s.both()[0]) // docker's second reference ends with the claim
		if got := s.sh("again", "cat /data/f"); got != "on" {
			t.Errorf("it reads %q", got)
		}
		s.box.Must(t, "start", "alone", "ro")
		if got := s.sh("alone", "cat /own/f") + s.sh("ro", "cat /data/f"); got != "offon" {
			t.Errorf("they read %q", got)
		}
		s.holds(s.both()...)
		s.box.Must(t, "rm", "-f", "again", "alone", "ro")
		s.clean()
		s.box.Must(t, "volume", "rm", "data", "own")
	}
}

// both returns the expected claims while two containers share one volume and a third container uses
// another volume. Podman has only one reference for all containers of a volume.
func (s served) both() []string {
	name, two := s.box.Name, 1
	if name == "docker" {
		two = 2
	}
	return []string{fmt.Sprintf("data %s mounted %s %d", name, name, two), fmt.Sprintf("own %s mounted %s 1", name, name)}
}

// powerCut simulates a power cut. It kills all processes, removes all mounts, and removes all files
// that a host keeps in memory. The processes are the agent, the plugins, the runtime with its
// helpers, and the containers.
func (s served) powerCut(containers ...string) {
	s.T.Helper()
	var pids []int
	memory := []string{s.box.Dir + "/exec", s.box.Dir + "/run", s.box.Dir + "/tmp", s.box.Dir + "/pid", s.box.Dir + "/s", s.pluginSocket(), filepath.Join(s.Dir, "run")}
	for _, c := range containers {
		memory = append(memory, "/run/runc/"+s.box.Must(s.T, "inspect", "--format", "{{.Id}}", c))
		pid, err := strconv.Atoi(s.box.Must(s.T, "inspect", "--format", "{{.State.Pid}}", c))
		s.Must(err)
		pids = append(pids, pid)
	}
	s.Kill()
	// Stop all processes before killing them. Otherwise one process could see the end of another
	// process, and report it or restart that process.
	pids = slices.Concat(processesNaming(s.T, s.box.Dir), pids)
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, pid := range pids {
			if err := syscall.Kill(pid, sig); !errors.Is(err, syscall.ESRCH) {
				s.Must(err)
			}
		}
	}
	if s.box.Daemon != nil {
		_ = s.box.Daemon.Wait() // the kill makes Wait return an error
		s.box.Daemon = nil
	}
	s.Await("the end of all", func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool { return !harness.ProcessEnded(pid) })
	})
	s.StopPlugins()
	harness.UnmountAll(s.Host)
	s.Must(s.box.UnmountAll())
	for _, in := range memory {
		s.Must(os.RemoveAll(in))
	}
}
