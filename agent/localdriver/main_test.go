package localdriver

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// In these modes, the test binary runs the sanity suite, or runs as a driver process that a test
// kills.
const (
	modeSanity = "sanity"
	modeDriver = "driver"

	// envDie makes a driver process kill itself when it reaches a point of store.StateDir.Tap. The
	// value is the name of a point, such as "placed". "frozen 2" means the second time that the
	// driver reaches "frozen".
	envDie = "LOCALDRIVER_TEST_DIE"
)

func background() context.Context { return context.Background() }

func TestMain(m *testing.M) {
	sandbox.RunTests(m, map[string]func() int{modeSanity: runSanitySuite, modeDriver: runDriverProcess})
}

// runDriverProcess runs a driver in a separate process, so that a test can kill the process.
func runDriverProcess() int {
	ctx, stop := signal.NotifyContext(background(), unix.SIGTERM)
	defer stop()
	err := Run(ctx, Options{
		Endpoint: "unix://" + os.Getenv("CSI_ENDPOINT"),
		NodeID:   "node-1",
		StateDir: os.Getenv("STATE_DIR"),
		Version:  "test",
		Log:      hclog.New(&hclog.LoggerOptions{Output: os.Stderr}),
		tap:      dieAt(os.Getenv(envDie)),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func dieAt(where string) func(point string) {
	if where == "" {
		return nil
	}
	var left atomic.Int64
	left.Store(1)
	point, times, _ := strings.Cut(where, " ")
	if n, err := strconv.ParseInt(times, 10, 64); err == nil {
		left.Store(n)
	}
	return func(at string) {
		if at == point && left.Add(-1) == 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {} // do not continue until the signal has ended this process
		}
	}
}
