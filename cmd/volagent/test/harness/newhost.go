package harness

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// NewHost creates the directories of a host. At the end of the test it stops all running plugins
// and unmounts everything.
func NewHost(t testing.TB) *Host {
	t.Helper()
	h := &Host{T: t, Place: Here{}}
	for h.Dir == "" {
		dir := "/tmp/" + randomWord()
		if os.Mkdir(dir, 0o755) == nil {
			h.Dir = dir
			hostDirsMu.Lock()
			hostDirs = append(hostDirs, dir)
			hostDirsMu.Unlock()
		}
	}
	h.Env = append(os.Environ(), "VOLCTL_SOCKET="+h.Socket(), "VOLAGENT_VOLUMES_DIR="+filepath.Join(h.Dir, "volumes.d"), "PATH="+BinDir+":"+os.Getenv("PATH"), "INVOCATION_ID=")
	for _, d := range []string{"plugins.d", "run"} {
		h.Must(os.Mkdir(filepath.Join(h.Dir, d), 0o755))
	}
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), nil, 0o644))
	log, err := os.Create(filepath.Join(h.Dir, "agent.log"))
	h.Must(err)
	h.Log = log
	t.Cleanup(h.close)
	return h
}

// hostDirs contains the directories of all hosts that the tests have created.
var (
	hostDirs   []string
	hostDirsMu sync.Mutex
)

// randomWord returns a random name for the host's directory. The name has no vowels and no digits.
// Therefore a path never contains a text, such as an id, that a test searches for in output.
func randomWord() string {
	const consonants = "bcdfghjklmnpqrstvwxz"
	word := make([]byte, 6)
	for i := range word {
		word[i] = consonants[rand.IntN(len(consonants))]
	}
	return string(word)
}

// close stops the agent and the plugins, and removes all mounts and directories of the host. A
// leftover mount does not fail the test, so a test that expects no mounts must assert this itself.
func (h *Host) close() {
	raw, err := os.ReadFile(h.Log.Name())
	h.Must(err)
	for _, bad := range []string{"DATA RACE", "panic: ", "fatal error: "} {
		if bytes.Contains(raw, []byte(bad)) {
			h.T.Errorf("the agent's log holds %q", bad)
		}
	}
	if h.T.Failed() {
		h.T.Logf("the agent's log:\n%s", raw)
	}
	if h.Cmd != nil {
		h.Must(h.Cmd.Process.Kill())
		_ = h.Cmd.Wait() // Wait returns an error because the agent was killed
	}
	h.CheckDB()
	h.StopPlugins()
	UnmountAll(h)
	detachLoops(h)
	h.Must(h.Log.Close())
	h.UnguardAll()
	h.Must(os.RemoveAll(h.Dir))
}
