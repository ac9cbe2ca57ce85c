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

// The test binary can also be the sanity suite, or a driver that a test kills.
const (
	modeSanity = "sanity"
	modeDriver = "driver"

	// envDie makes a driver process kill itself at a point of store.StateDir.Tap: "placed", or "frozen 2"
	// for the second time at that point.
	envDie = "LOCALDRIVER_TEST_DIE"
)

func background() context.Context { return context.Background() }

func TestMain(m *testing.M) {
	sandbox.RunTests(m, map[string]func() int{modeSanity: runSanitySuite, modeDriver: runDriverProcess})
}

// runDriverProcess runs a driver in a separate process, which a test kills.
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
			select {} // the process waits until a signal kills it
		}
	}
}
