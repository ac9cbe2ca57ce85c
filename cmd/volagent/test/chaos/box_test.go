package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// startBox starts a docker daemon for this run. The daemon uses the agent as a docker volume
// plugin.
func (c *chaos) startBox() {
	c.T.Helper()
	c.Must(harness.ShowPlugins())
	c.driver = "csi" + filepath.Base(c.Dir)
	c.Must(os.WriteFile(filepath.Join(c.Dir, "volagent.yaml"), []byte("docker_socket: "+filepath.Join(harness.DockerPlugins, c.driver+".sock")+"\n"), 0o644))
	c.box = harness.OwnBox(c.T, &harness.Box{Name: "docker", Plain: true})
	c.Env = append(c.Env, c.box.Env...)
}

// killBox kills dockerd and its containerd processes, and then restarts dockerd.
func (c *chaos) killBox() error {
	if c.box == nil {
		return nil
	}
	c.boxMu.Lock()
	defer c.boxMu.Unlock()
	if err := c.box.Daemon.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = c.box.Daemon.Wait() // Wait returns an error because the daemon was killed
	c.count.Add("dockerd kills")
	for _, pid := range processesOf(c.box.Dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL) // Kill fails if the process has already ended
	}
	if err := c.box.StartDaemon(); err != nil {
		return fmt.Errorf("dockerd does not start again: %w", err)
	}
	return nil
}

// processesOf returns the containerd processes whose arguments contain the directory dir.
func processesOf(dir string) (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // Glob fails only for an invalid pattern
	for _, line := range lines {
		raw, err := os.ReadFile(line)
		var pid int
		_, scan := fmt.Sscanf(line, "/proc/%d/", &pid)
		if err == nil && scan == nil && strings.HasPrefix(string(raw), "containerd\x00") && strings.Contains(string(raw), dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// docker runs a docker command. If killBox is restarting dockerd, docker first waits for the end of
// the restart.
func (k *chaosClient) docker(args ...string) (string, error) {
	k.boxMu.RLock()
	defer k.boxMu.RUnlock()
	return k.box.Run(args...)
}

// runContainer starts a container that mounts one of the volumes in k.served and writes to it. If
// the client already has a container, runContainer only writes from that container.
func (k *chaosClient) runContainer(_ context.Context, dice *rand.Rand) error {
	if k.box == nil {
		return nil
	}
	s := k.served[dice.IntN(len(k.served)-1)] // the last volume in served is a raw device
	if k.holding == "" {
		k.names++
		name := fmt.Sprintf("%s-%d.%s", k.name, k.names, k.driver)
		out, err := k.docker("run", "-d", "--name", name, "--network", "none", "--stop-timeout", "1", "--volume-driver", k.driver,
			"-v", s.name+":/data", harness.ShellImage, "exec /bin/busybox sleep 10000")
		s.log("%s started container %s: %v %s", k.name, name, err, out)
		k.holding, k.inside = name, s
		if err != nil {
			return k.asRefused(out)
		}
	}
	return k.writeInside(k.holding, k.inside)
}

// asRefused returns a failure of the container runtime as an API error, because the run accepts
// every error that has an API code.
func (k *chaosClient) asRefused(out string) error {
	return &api.Error{Code: "refused by the runtime", Message: out}
}

// writeInside makes a process in the container write, sync and rename a file on the volume.
func (k *chaosClient) writeInside(name string, s *chaosStorage) error {
	writer := "box-" + k.name
	seq, _ := s.ledger.begin(writer)
	words := fmt.Sprintf("base64 -d > /data/%[1]s.next && sync /data/%[1]s.next && mv /data/%[1]s.next /data/%[1]s && sync /data", writer)
	k.boxMu.RLock()
	defer k.boxMu.RUnlock()
	cmd := k.box.Command("exec", "-i", name, "/bin/busybox", "sh", "-c", strings.ReplaceAll(words, "base64", "/bin/busybox base64"))
	cmd.Stdin = strings.NewReader(encoded(pattern(s.name, writer, seq, patternSize(seq))))
	out, err := cmd.CombinedOutput()
	s.ledger.end(writer, seq, err)
	s.log("%s wrote %d in container %s: %v %s", writer, seq, name, err, out)
	if err != nil {
		return k.asRefused(string(out))
	}
	k.count.Add("writes")
	return nil
}

// stopContainer removes the client's container, if it has one.
func (k *chaosClient) stopContainer(context.Context) error {
	if k.holding == "" {
		return nil
	}
	out, err := k.docker("rm", "-f", k.holding)
	k.inside.log("%s removed container %s: %v %s", k.name, k.holding, err, out)
	if err != nil {
		return k.asRefused(out)
	}
	k.holding = ""
	return nil
}
