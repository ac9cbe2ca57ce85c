// Package crasher runs an agent that dies on the order of a test. The agent runs the same code as
// volagent. It counts the points that it reaches. There is a point before and after each commit of the
// state database, each changing call to a plugin, and each transaction in a cluster's store.
package crasher

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
	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/csitest"
	"github.com/volagent/volagent/volmgr/shared"
)

// Env is an environment variable that turns this test binary into a crashing agent. A crashing
// agent runs the same code as volagent, but dies on the order of a test. The value of the variable
// is the directory in which the test writes its orders.
const Env = "VOLAGENT_TEST_CRASH"

// Order tells the crashing agent at which point to die. It is the content of the file "order" in
// the directory that Env names. Without this file the agent counts no points.
type Order struct {
	Run     int  // a new run number resets the count of points
	At      int  // number of the point at which to act, from 1; with 0 the agent only counts
	Agent   bool // whether the agent kills itself
	Plugin  int  // pid of a process that the agent first kills, or 0
	Commits bool // whether only commits count as points
	// Named is the name of a point, such as "before ControllerPublishVolume". The agent acts when it
	// first reaches this point. At must be 0 then.
	Named string
	Stop  bool // whether the agent suspends itself with SIGSTOP, instead of killing itself
	// PowerOf is a directory on a file system that the agent shuts down before it kills a process.
	// If Later is not 0, the agent continues for this time before it acts.
	PowerOf string
	Later   time.Duration
}

// These constants make the kernel shut down an ext4 file system and lose all unsynced data. They
// are EXT4_IOC_SHUTDOWN and EXT4_GOING_FLAGS_NOLOGFLUSH in the kernel's fs/ext4/ext4.h.
const (
	ioctlShutdown = 0x8004587d
	noLogFlush    = 2
)

// crashing counts the points that the agent reaches. It kills the agent at the point that the order
// names.
type crashing struct {
	dir string

	mu    sync.Mutex
	last  Order
	n     int
	acted bool // the agent has reached the named point of the order
}

// Main is the main function of the crashing agent. The argument is the directory of the orders.
func Main(dir string) int {
	c := &crashing{dir: dir}
	return agent.Main(os.Args[1:], os.Stdout, os.Stderr, agent.Seams{Tap: c.commit, Interceptor: c.call, Transaction: c.transaction})
}

func (c *crashing) commit(p statedb.Point) {
	when, _, _ := strings.Cut(string(p), "-")
	c.point(when+" commit", true)
}

// transaction counts a point before and after each transaction that changes the cluster.
func (c *crashing) transaction(p cluster.Point) {
	if !slices.ContainsFunc(p.Txn.Then, func(o shared.Op) bool { return o.Kind != shared.OpGet }) {
		return
	}

	when := "before"
	if p.After {
		when = "after"
	}
	c.point(when+" transaction", false)
}

// call makes a CSI call, and counts one point before and one point after the call. It does not
// count calls that query a plugin's identity and capabilities, because their number depends on how
// fast the plugin starts.
func (c *crashing) call(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, do grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	name := path.Base(method)
	if !csitest.Mutates(name) && name != csitest.ValidateCapabilities {
		return do(ctx, method, req, resp, cc, opts...)
	}
	c.point("before "+name, false)
	err := do(ctx, method, req, resp, cc, opts...)
	c.point("after "+name, false)
	return err
}

// point counts and records one point. If the order names this point, it executes the order. It
// holds the lock throughout, so that no other goroutine reaches a point at the same time.
func (c *crashing) point(name string, commit bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok, err := readOrder(c.dir)
	if err == nil && ok && (commit || !o.Commits) {
		if o.Run != c.last.Run {
			c.n, c.acted = 0, false
		}
		c.last = o
		c.n++
		reached := c.n == o.At
		if name == o.Named && !c.acted {
			reached, c.acted = true, true
		}
		if err = c.note(name); err == nil && reached {
			err = o.obey()
		}
	}
	if err != nil {
		panic(err)
	}
}

func (c *crashing) note(name string) error {
	f, err := os.OpenFile(filepath.Join(c.dir, "points-"+strconv.Itoa(c.last.Run)), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(name + "\n")
	return errors.Join(err, f.Close())
}

func (o Order) obey() error {
	die := func() error {
		if o.PowerOf != "" {
			if err := cutPower(o.PowerOf); err != nil {
				return err
			}
		}
		if o.Plugin != 0 {
			if err := Kill(o.Plugin); err != nil {
				return err
			}
		}
		if o.Stop {
			return syscall.Kill(os.Getpid(), syscall.SIGSTOP)
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

// Kill kills a process and waits until the process is dead.
func Kill(pid int) error {
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

func readOrder(dir string) (o Order, ok bool, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "order"))
	if errors.Is(err, fs.ErrNotExist) {
		return o, false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &o)
	}
	return o, err == nil, err
}

// Give writes the order to the directory from which the agent reads it.
func (o Order) Give(dir string) error {
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

// PointsOf returns the points that the agent reached in the given run.
func PointsOf(dir string, run int) ([]string, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "points-"+strconv.Itoa(run)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return slices.Collect(harness.Lines(string(raw))), err
}
