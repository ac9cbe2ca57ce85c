package harness

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// lockedDir is an environment variable that turns the test binary into a process with a lock. The
// process locks the directory that the variable names, and holds the lock until its standard input
// ends.
const lockedDir = "VOLAGENT_TEST_LOCK"

func TestMain(m *testing.M) {
	dir := os.Getenv(lockedDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	if _, err := lockDir(dir, func() {}); err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString("locked\n") // the parent may have ended
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// TestLock checks that a process waits for a lock until the process that holds it ends.
func TestLock(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), lockedDir+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the other process said %q, %v", line, err)
	}

	waits, got := make(chan struct{}), make(chan error, 1)
	go func() {
		unlock, err := lockDir(dir, func() { close(waits) })
		if err == nil {
			err = unlock()
		}
		got <- err
	}()
	select {
	case <-waits:
	case err := <-got:
		t.Fatalf("two processes have the lock (%v)", err)
	}
	select {
	case err := <-got:
		t.Fatalf("two processes have the lock (%v)", err)
	case <-time.After(50 * time.Millisecond):
	}

	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// TestOneBuild checks that a second test folder reuses the programs that the first folder built.
func TestOneBuild(t *testing.T) {
	cache := t.TempDir()
	var first [2]os.FileInfo
	for folder := range 2 {
		to := t.TempDir()
		if err := buildCached(cache, to); err != nil {
			t.Fatal(err)
		}
		for i, program := range []string{"volagent", "volctl"} {
			if out, err := exec.Command(filepath.Join(to, program), "--version").CombinedOutput(); err != nil {
				t.Errorf("%s --version: %v\n%s", program, err, out)
			}
			info, err := os.Stat(filepath.Join(cache, program))
			if err != nil {
				t.Fatal(err)
			}
			if folder == 0 {
				first[i] = info
			} else if !os.SameFile(first[i], info) {
				t.Errorf("%s was built again", program)
			}
		}
	}
}
