package crash_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/csitest"
)

// crashEnv is the environment variable with the directory through which a test controls a crashing
// agent. The crashing agent is this test binary. It runs the same code as volagent, with hooks at
// each commit and each CSI call.
const crashEnv = "VOLAGENT_TEST_CRASH"

// order is the content of the file "order" in the directory that crashEnv names. It tells the agent
// at which point to die. Without this file the agent does not count points.
type order struct {
	Run     int  // a new number resets the count of points
	At      int  // the point at which the agent dies, from 1; 0 means that it only counts
	Agent   bool // kill the agent itself
	Plugin  int  // pid of a process that the agent kills before it dies
	Commits bool // count commits as points, but not calls
	// PowerOf is a file system that the agent shuts down before any process dies. If Later is set,
	// the agent continues for this time after the point, and then shuts down the file system.
	PowerOf string
	Later   time.Duration
}

// These constants make the kernel shut down an ext4 file system and lose all unsynced data. They
// are EXT4_IOC_SHUTDOWN and EXT4_GOING_FLAGS_NOLOGFLUSH in the kernel's fs/ext4/ext4.h.
const (
	ioctlShutdown = 0x8004587d
	noLogFlush    = 2
)

// crasher counts the points that the agent reaches, and kills the agent at one of them.
type crasher struct {
	dir string

	mu   sync.Mutex
	last order
	n    int
}

// crashMain is the main function of the crashing agent.
func crashMain(dir string) int {
	c := &crasher{dir: dir}
	return agent.Main(os.Args[1:], os.Stdout, os.Stderr, agent.Seams{Tap: c.commit, Interceptor: c.call})
}

func (c *crasher) commit(p statedb.Point) {
	when, _, _ := strings.Cut(string(p), "-")
	c.point(when+" commit", true)
}

// call counts one point before each CSI call and one point after it. It ignores calls that query a
// plugin's identity and capabilities, because their number depends on how fast the plugin starts.
func (c *crasher) call(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, do grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	name := path.Base(method)
	if !csitest.Mutates(name) && name != csitest.ValidateCapabilities {
		return do(ctx, method, req, resp, cc, opts...)
	}
	c.point("before "+name, false)
	err := do(ctx, method, req, resp, cc, opts...)
	c.point("after "+name, false)
	return err
}

// point counts and records one point, and executes the order if this is the point to die at. It
// holds the lock meanwhile, so that no other goroutine reaches a point.
func (c *crasher) point(name string, commit bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok, err := readOrder(c.dir)
	if err == nil && ok && (commit || !o.Commits) {
		if o.Run != c.last.Run {
			c.n = 0
		}
		c.last = o
		c.n++
		if err = c.note(name); err == nil && c.n == o.At {
			err = o.obey()
		}
	}
	if err != nil {
		panic(err)
	}
}

func (c *crasher) note(name string) error {
	f, err := os.OpenFile(filepath.Join(c.dir, "points-"+strconv.Itoa(c.last.Run)), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(name + "\n")
	return errors.Join(err, f.Close())
}

func (o order) obey() error {
	die := func() error {
		if o.PowerOf != "" {
			if err := cutPower(o.PowerOf); err != nil {
				return err
			}
		}
		if o.Plugin != 0 {
			if err := killed(o.Plugin); err != nil {
				return err
			}
		}
		if o.Agent {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	}
	if o.Later == 0 {
		return die()
	}
	time.AfterFunc(o.Later, func() {
		if err := die(); err != nil {
			panic(err)
		}
	})
	return nil
}

// killed kills a process and returns after the process has died.
func killed(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("cannot kill the plugin: %w", err)
	}
	for !harness.ProcessEnded(pid) {
		time.Sleep(time.Millisecond)
	}
	return nil
}

func cutPower(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlSetPointerInt(int(f.Fd()), ioctlShutdown, noLogFlush), f.Close())
}

func readOrder(dir string) (o order, ok bool, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "order"))
	if errors.Is(err, fs.ErrNotExist) {
		return o, false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &o)
	}
	return o, err == nil, err
}

// give writes the order to the directory, so that the agent reads it.
func (o order) give(dir string) error {
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	next := filepath.Join(dir, "next")
	if err := os.WriteFile(next, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, "order"))
}

// pointsOf returns the points that the agent reached in the given run.
func pointsOf(dir string, run int) ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "points-"+strconv.Itoa(run)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return slices.Collect(harness.Lines(string(raw))), err
}
