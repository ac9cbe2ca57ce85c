package chaos_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// agentKeeper restarts the agent whenever the agent has ended.
type agentKeeper struct {
	c        *chaos
	mu       sync.Mutex
	cmd      *exec.Cmd
	since    time.Time
	told     bool // the agent received SIGTERM
	stopping bool
	ended    chan struct{} // closed when the last agent has ended
}

// start starts the first agent and waits until both plugins are ready.
func (k *agentKeeper) start(c *chaos) {
	k.c, k.ended = c, make(chan struct{})
	k.c.Must(k.launch())
	go k.keep()
	for _, p := range []string{"rec", "local"} {
		c.Volctl("wait", "--plugin", p, "--timeout", "60s")
	}
}

func (k *agentKeeper) launch() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told, k.since = false, time.Now()
	k.cmd = exec.Command(filepath.Join(harness.BinDir, "volagent"), k.c.Args()...)
	k.cmd.Env, k.cmd.Stderr = k.c.Env, k.c.Log
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	k.c.count.add("agent starts")
	return k.cmd.Start()
}

// keep restarts the agent until a caller calls stop.
func (k *agentKeeper) keep() {
	defer close(k.ended)
	for {
		err := k.cmd.Wait()
		k.mu.Lock()
		ws, ok := k.cmd.ProcessState.Sys().(syscall.WaitStatus)
		killed := ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
		inOrder := k.told && err == nil
		stopping := k.stopping
		k.mu.Unlock()
		if !killed && !inOrder {
			k.c.fail(nil, "the agent ended by itself: %v", k.cmd.ProcessState)
		}
		if stopping {
			return
		}
		if err := k.launch(); err != nil {
			k.c.fail(nil, "the agent does not start: %v", err)
			return
		}
		go k.recovers()
	}
}

// recovers waits until the restarted agent and its plugin "rec" are ready, and counts the recovery.
func (k *agentKeeper) recovers() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for rest(ctx, 100*time.Millisecond) {
		if p, err := k.c.api.WaitPlugin(ctx, "rec", time.Second); err == nil && p.State == api.PluginReady {
			k.c.count.add("agent recoveries")
			return
		}
	}
}

// agentLives is the minimum lifetime of an agent. Each agent must live long enough to do some work.
const agentLives = 4 * time.Second

// kill kills the agent unless the agent is younger than agentLives. keep then starts another agent.
func (k *agentKeeper) kill(with syscall.Signal) {
	k.mu.Lock()
	young := time.Since(k.since) < agentLives
	k.mu.Unlock()
	if !young {
		k.c.count.add("agent kills: " + with.String())
		k.signal(with)
	}
}

func (k *agentKeeper) signal(sig syscall.Signal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = k.told || sig == syscall.SIGTERM
	_ = k.cmd.Process.Signal(sig) // the process may have ended
}

// stop stops the agent and prevents further restarts.
func (k *agentKeeper) stop() {
	k.mu.Lock()
	k.stopping = true
	k.mu.Unlock()
	k.signal(syscall.SIGTERM)
	<-k.ended
}

// makeTrouble causes faults until ctx ends.
func (c *chaos) makeTrouble(ctx context.Context) {
	kinds := troubleKinds(c.all, *chaosTrouble)
	if len(kinds) == 0 {
		return
	}
	p := newPlanner(c.seed, 1000, 400*time.Millisecond, kinds)
	var faults []string
	for s := p.next(); rest(ctx, s.pause); s = p.next() {
		c.count.add("trouble: " + string(s.kind))
		ids, err := c.trouble(ctx, s)
		if err != nil {
			c.fail(nil, "trouble %q: %v", s.kind, err)
			return
		}
		faults = append(faults, ids...)
		if old := len(faults) - 8; old > 0 {
			c.Must(c.Config.Faults().Remove(faults[:old]...))
			faults = faults[old:]
		}
	}
}

// trouble causes one fault. It returns the ids of the faults that take effect at a later call.
func (c *chaos) trouble(ctx context.Context, s step[trouble]) ([]string, error) {
	switch s.kind {
	case killAgent:
		c.agent.kill(syscall.SIGKILL)
	case stopAgent:
		c.agent.kill(syscall.SIGTERM)
	case killRec:
		return nil, c.killPlugin("rec")
	case killLocal:
		return nil, c.killPlugin("local")
	case killDocker:
		return nil, c.killBox()
	default:
		return c.fault(ctx, s)
	}
	return nil, nil
}

// killPlugin kills all processes of a plugin.
func (c *chaos) killPlugin(id string) error {
	for _, pid := range startedBelow(c.Dir, "/plugins/"+id+"/") {
		if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
			c.count.add("plugin kills")
		}
	}
	return nil
}

// startedBelow returns the pids of plugin processes whose socket is below dir. The socket's path
// must also contain words.
func startedBelow(dir, words string) (pids []int) {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is valid
	for _, path := range environs {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended meanwhile
		}
		for kv := range bytes.SplitSeq(raw, []byte{0}) {
			endpoint, is := bytes.CutPrefix(kv, []byte("CSI_ENDPOINT=unix://"+dir+"/"))
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); is && err == nil && bytes.Contains(endpoint, []byte(words)) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// undoing lists the calls that unmount and disconnect a volume. making lists the calls that connect
// and mount a volume. storing lists the calls that change the storage.
var (
	undoing = []string{csitest.NodeUnpublish, csitest.NodeUnstage, csitest.ControllerUnpublish}
	making  = []string{csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish}
	storing = []string{csitest.CreateVolume, csitest.DeleteVolume, csitest.ControllerExpand, csitest.NodeExpand, csitest.CreateSnapshot, csitest.DeleteSnapshot}
)

// someCall picks one of the given calls. If the flag -chaos.calls is set, it picks one of the calls
// in that flag.
func someCall(dice *rand.Rand, calls []string) string {
	if *chaosCalls != "" {
		calls = strings.Split(*chaosCalls, ",")
	}
	return calls[dice.IntN(len(calls))]
}

// fault makes the next call of a random method fail, hang or take longer.
func (c *chaos) fault(ctx context.Context, s step[trouble]) ([]string, error) {
	f := csitest.Fault{Method: someCall(s.dice, slices.Concat(undoing, undoing, making, storing))}
	failure := []codes.Code{codes.Internal, codes.Unavailable, codes.Aborted, codes.Unknown}[s.dice.IntN(4)]
	switch s.kind {
	case callFails:
		f.Code, f.Times = failure, 1+s.dice.IntN(2)
	case callLies:
		f.Code, f.Effect = failure, csitest.EffectDone
	case callSlow:
		f.Delay = fraction(s.dice, 0.05, 0.7)
	case callLate:
		late(&f, s.dice)
	case callHangs:
		f.Hang, f.Effect, f.Code = true, csitest.EffectNone, codes.Aborted
	case diesAtCall:
		when := []csitest.Moment{csitest.BeforeEffect, csitest.AfterEffect}[s.dice.IntN(2)]
		if s.dice.IntN(3) == 0 {
			f.Crash = when
		} else {
			f.KillCaller = when
		}
	}
	ids, err := c.Config.Faults().Add(f)
	if f.Hang && err == nil {
		time.AfterFunc(fraction(s.dice, 0.3, 1.7), func() {
			_ = c.Config.Faults().Remove(ids...) // a failure recurs in the next Add
		})
		return nil, ctx.Err()
	}
	return ids, err
}

// fraction returns a random duration between two fractions of the deadline.
func fraction(dice *rand.Rand, least, most float64) time.Duration {
	return time.Duration(float64(chaosDeadline) * (least + dice.Float64()*(most-least)))
}

// late makes a call answer after the deadline, with a late effect. The effect still comes within
// the time for which the agent must wait.
func late(f *csitest.Fault, dice *rand.Rand) {
	f.Delay, f.Bounded = fraction(dice, 1.05, 1.85), true
	f.Outlives = f.Method == csitest.ControllerPublish || f.Method == csitest.ControllerUnpublish
}
