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

// agentKeeper runs the agent and restarts it whenever it has ended.
type agentKeeper struct {
	c        *chaos
	mu       sync.Mutex
	cmd      *exec.Cmd
	since    time.Time
	told     bool // the keeper has sent SIGTERM to the agent
	stopping bool
	ended    chan struct{} // closed when the last agent process has ended
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
	k.c.count.Add("agent starts")
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

// recovers waits until a restarted agent has a ready plugin, and counts the recovery.
func (k *agentKeeper) recovers() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for rest(ctx, 100*time.Millisecond) {
		if p, err := k.c.api.WaitPlugin(ctx, "rec", time.Second); err == nil && p.State == api.PluginReady {
			k.c.count.Add("agent recoveries")
			return
		}
	}
}

// agentLives is the minimum age at which kill may kill an agent, so that each agent can do some
// work.
const agentLives = 4 * time.Second

// kill sends a signal to the agent if the agent is older than agentLives. When the agent ends, keep
// starts another one.
func (k *agentKeeper) kill(with syscall.Signal) {
	k.mu.Lock()
	young := time.Since(k.since) < agentLives
	k.mu.Unlock()
	if !young {
		k.c.count.Add("agent kills: " + with.String())
		k.signal(with)
	}
}

func (k *agentKeeper) signal(sig syscall.Signal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.told = k.told || sig == syscall.SIGTERM
	_ = k.cmd.Process.Signal(sig) // Signal fails if the process has already ended
}

// stop stops the agent and prevents further restarts.
func (k *agentKeeper) stop() {
	k.mu.Lock()
	k.stopping = true
	k.mu.Unlock()
	k.signal(syscall.SIGTERM)
	<-k.ended
}

// makeTrouble injects faults until ctx ends.
func (c *chaos) makeTrouble(ctx context.Context) {
	kinds := troubleKinds(c.all, *chaosTrouble)
	if len(kinds) == 0 {
		return
	}
	p := newPlanner(c.seed, 1000, 400*time.Millisecond, kinds)
	var faults []string
	for s := p.next(); rest(ctx, s.pause); s = p.next() {
		c.count.Add("trouble: " + string(s.kind))
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

// trouble injects one fault. It returns the ids of the faults that take effect only at a later
// call.
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
			c.count.Add("plugin kills")
		}
	}
	return nil
}

// startedBelow returns the pids of all plugin processes whose socket is below the directory dir.
// The socket's path must also contain the string words.
func startedBelow(dir, words string) (pids []int) {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ") // Glob fails only for an invalid pattern
	for _, path := range environs {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
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

// someCall picks a random call from the given list. If the flag -chaos.calls is set, it picks from
// the calls in that flag instead.
func someCall(dice *rand.Rand, calls []string) string {
	if *chaosCalls != "" {
		calls = strings.Split(*chaosCalls, ",")
	}
	return calls[dice.IntN(len(calls))]
}

// fault makes the next call of a random method fail, hang, take longer, or kill a process.
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
			_ = c.Config.Faults().Remove(ids...) // the next Add fails for the same reason
		})
		return nil, ctx.Err()
	}
	return ids, err
}

// fraction returns a random duration between the two given fractions of chaosDeadline.
func fraction(dice *rand.Rand, least, most float64) time.Duration {
	return time.Duration(float64(chaosDeadline) * (least + dice.Float64()*(most-least)))
}

// late makes a call answer after its deadline and take effect late. The effect still comes before
// the agent stops waiting for late effects.
func late(f *csitest.Fault, dice *rand.Rand) {
	f.Delay, f.Bounded = fraction(dice, 1.05, 1.85), true
	f.Outlives = f.Method == csitest.ControllerPublish || f.Method == csitest.ControllerUnpublish
}
