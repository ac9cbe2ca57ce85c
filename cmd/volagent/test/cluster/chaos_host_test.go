package cluster_test

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// These are the shortest and the longest time of most faults. The long ones outlive the lease of a host.
const (
	brief = 500 * time.Millisecond
	long  = 25 * time.Second
)

func (c *clusterChaos) killAgent(dice *rand.Rand) *activeFault {
	return c.onHost(dice, brief, 3*time.Second, func(s *station) func() {
		s.Kill()
		if dice.IntN(2) == 0 {
			s.saveRecords()
		}
		return s.Launch
	})
}

func (c *clusterChaos) stopAgent(dice *rand.Rand) *activeFault {
	return c.onHost(dice, brief, 3*time.Second, func(s *station) func() {
		// An agent that waits for a call of a driver ends with an error.
		_ = s.Signal(syscall.SIGTERM)
		return s.Launch
	})
}

func (c *clusterChaos) freezeAgent(dice *rand.Rand) *activeFault {
	return c.onHost(dice, brief, long, func(s *station) func() {
		s.Freeze()
		return s.Thaw
	})
}

func (c *clusterChaos) freezeHost(dice *rand.Rand) *activeFault {
	return c.onHost(dice, brief, long, func(s *station) func() {
		s.Freeze()
		plugins := s.PluginPIDs()
		signalAll(plugins, syscall.SIGSTOP)
		return func() {
			signalAll(plugins, syscall.SIGCONT)
			s.Thaw()
		}
	})
}

func (c *clusterChaos) killPlugin(dice *rand.Rand) *activeFault {
	return c.onPlugin(dice, 0, func(pids []int) func() {
		signalAll(pids, syscall.SIGKILL)
		return nil
	})
}

func (c *clusterChaos) freezePlugin(dice *rand.Rand) *activeFault {
	return c.onPlugin(dice, 8*time.Second, func(pids []int) func() {
		signalAll(pids, syscall.SIGSTOP)
		return func() { signalAll(pids, syscall.SIGCONT) }
	})
}

// onPlugin begins a fault of the plugin of a random host. The host loses no claim because of that.
func (c *clusterChaos) onPlugin(dice *rand.Rand, most time.Duration, begin func(pids []int) (end func())) *activeFault {
	s := c.idle(dice)
	if s == nil {
		return nil
	}
	return &activeFault{until: time.Now().Add(between(dice, 0, most)), end: begin(s.PluginPIDs())}
}

// signalAll sends a signal to processes, of which some may have ended.
func signalAll(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}

func (c *clusterChaos) failStateDisk(dice *rand.Rand) *activeFault {
	how := [][2]string{{"pwrite64", "error=ENOSPC"}, {"fdatasync", "error=EIO"}}[dice.IntN(2)]
	return c.onStateDisk(dice, how[0], how[1])
}

func (c *clusterChaos) slowStateDisk(dice *rand.Rand) *activeFault {
	return c.onStateDisk(dice, "fdatasync", "delay_exit=300000")
}

// onStateDisk changes a system call of the agent of a random host on its state database. The agent may end
// because of that.
func (c *clusterChaos) onStateDisk(dice *rand.Rand, call, change string) *activeFault {
	return c.onHost(dice, brief, 5*time.Second, func(s *station) func() {
		agent := s.Cmd.Process.Pid
		end := harness.Inject(s.Host.Host, agent, call, change, "-P", filepath.Join(s.Dir, "d", "state.db"))
		return func() {
			end()
			if harness.ProcessEnded(agent) {
				c.counts.Add("agents that ended because of their disk")
				_ = s.Cmd.Wait() // with the error that the agent has logged
				s.Cmd = nil
				s.Launch()
			}
		}
	})
}

func (c *clusterChaos) powerOff(dice *rand.Rand) *activeFault {
	return c.onHost(dice, 5*time.Second, 2*long, func(s *station) func() {
		c.switchOff(s)
		return func() { c.switchOn(s) }
	})
}

// loseHost switches a host off for so long that others take over its volumes.
func (c *clusterChaos) loseHost(dice *rand.Rand) *activeFault {
	f := c.powerOff(dice)
	f.until = time.Now().Add(22 * time.Second)
	return f
}

func (c *clusterChaos) powerOffWithOldRecords(dice *rand.Rand) *activeFault {
	return c.onHost(dice, 5*time.Second, long, func(s *station) func() {
		c.switchOff(s)
		return func() {
			if s.records != "" {
				c.counts.Add("boots with old records")
				raw, err := os.ReadFile(s.records)
				s.Must(err)
				s.Must(os.WriteFile(filepath.Join(s.Dir, "d", "state.db"), raw, 0o600))
			}
			c.switchOn(s)
		}
	})
}

// powerOffAndFence switches a host off. A person on another host says so, as soon as the cluster has noticed it.
func (c *clusterChaos) powerOffAndFence(dice *rand.Rand) *activeFault {
	var lost *station
	f := c.onHost(dice, long, 2*long, func(s *station) func() {
		lost = s
		c.switchOff(s)
		return func() { c.switchOn(s) }
	})
	if f == nil {
		return nil
	}
	said := false
	f.tick = func() {
		other := c.stations[dice.IntN(chaosHosts)]
		if said || other.busy || !other.steady() {
			return
		}
		err := other.ask(5*time.Second, func(ctx context.Context) error {
			_, err := other.client.FenceHost(ctx, lost.Name, "seen without power")
			return err
		})
		if err == nil {
			said = true
			c.counts.Add("statements of a person")
		}
	}
	return f
}

// switchOff cuts a host from the storage, and then switches it off. In this order, nothing that the kernel
// writes at the end of a mount reaches the storage.
func (c *clusterChaos) switchOff(s *station) {
	c.san.CutOff(s.Name)
	s.power.Lock()
	defer s.power.Unlock()
	s.PowerOff()
}

// switchOn boots a host, and starts its agent.
func (c *clusterChaos) switchOn(s *station) {
	s.power.Lock()
	s.PowerOn()
	s.power.Unlock()
	c.san.RestoreNode(s.Name)
	s.Launch()
}

// saveRecords copies the state database, while the agent does not run.
func (s *station) saveRecords() {
	raw, err := os.ReadFile(filepath.Join(s.Dir, "d", "state.db"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	s.Must(err)
	s.records = filepath.Join(s.Dir, "older.db")
	s.Must(os.WriteFile(s.records, raw, 0o600))
}

func (c *clusterChaos) cutStorage(dice *rand.Rand) *activeFault {
	return c.onHost(dice, brief, 5*time.Second, func(s *station) func() {
		c.san.CutOff(s.Name)
		return func() { c.san.RestoreNode(s.Name) }
	})
}

func (c *clusterChaos) slowStorage(dice *rand.Rand) *activeFault {
	s := c.stations[dice.IntN(chaosHosts)]
	return &activeFault{until: time.Now().Add(between(dice, brief, 5*time.Second)), end: c.san.SlowData(s.Name, between(dice, 10*time.Millisecond, 300*time.Millisecond))}
}

// disturbedCalls are the calls of a driver that fail or take longer.
var disturbedCalls = []string{"ControllerPublishVolume", "ControllerUnpublishVolume", "NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume"}

// someCall returns a random call and the name of a random host.
func (c *clusterChaos) someCall(dice *rand.Rand) (method, node string) {
	return disturbedCalls[dice.IntN(len(disturbedCalls))], c.stations[dice.IntN(chaosHosts)].Name
}

func (c *clusterChaos) failCall(dice *rand.Rand) *activeFault {
	method, node := c.someCall(dice)
	c.san.FailNext(method, node, []codes.Code{codes.Internal, codes.Unavailable, codes.Aborted}[dice.IntN(3)])
	return &activeFault{}
}

func (c *clusterChaos) loseAnswer(dice *rand.Rand) *activeFault {
	c.san.LoseAnswer(c.someCall(dice))
	return &activeFault{}
}

// latest is the longest time after its begin at which a call takes effect. It is longer than the deadline, and
// shorter than the time for which an agent expects late effects, which is twice the deadline. A driver whose calls
// take effect still later is beyond every promise.
const latest = 1500 * time.Millisecond

func (c *clusterChaos) slowCalls(dice *rand.Rand) *activeFault {
	return c.onCalls(between(dice, brief, 6*time.Second), func(method, node string) func() {
		return c.san.Delay(method, node, between(dice, 100*time.Millisecond, latest))
	}, dice)
}

func (c *clusterChaos) holdCalls(dice *rand.Rand) *activeFault {
	return c.onCalls(latest, func(method, node string) func() {
		end := c.san.Hold(method, node)
		release := time.AfterFunc(latest, end) // the test may be busy with another fault
		return func() {
			release.Stop()
			end()
		}
	}, dice)
}

// onCalls begins a fault of a random call. It begins none while another one lasts, because together they would
// delay a call for too long.
func (c *clusterChaos) onCalls(last time.Duration, begin func(method, node string) (end func()), dice *rand.Rand) *activeFault {
	if slices.ContainsFunc(c.faults, func(f *activeFault) bool { return f.calls }) {
		return nil
	}
	return &activeFault{until: time.Now().Add(last), calls: true, end: begin(c.someCall(dice))}
}

// jumpClock moves the wall clock of an agent, and later moves it back. The certificates of the cluster stay
// valid. The host loses no claim because of that.
func (c *clusterChaos) jumpClock(dice *rand.Rand) *activeFault {
	s := c.stations[dice.IntN(chaosHosts)]
	s.Must(c.clock.SetClock(s.Host.Host, between(dice, -50*time.Minute, 20*time.Hour)))
	return &activeFault{until: time.Now().Add(between(dice, brief, long)), end: func() { s.Must(c.clock.SetClock(s.Host.Host, 0)) }}
}

func (c *clusterChaos) drain(dice *rand.Rand) *activeFault {
	return c.onHost(dice, brief, 5*time.Second, func(s *station) func() {
		_ = s.ask(5*time.Second, func(ctx context.Context) error { // a drain with leftovers is fine, too
			_, err := s.client.Drain(ctx, 2*time.Second)
			return err
		})
		return func() {
			s.Await("the end of the drain", func() bool {
				return s.ask(5*time.Second, func(ctx context.Context) error {
					_, err := s.client.Undrain(ctx)
					return err
				}) == nil
			})
		}
	})
}

// move moves a volume that a random host uses to another random host.
func (c *clusterChaos) move(dice *rand.Rand) *activeFault {
	to, by := c.idle(dice), c.idle(dice)
	if to == nil || by == nil {
		return nil
	}
	id := c.volumes[dice.IntN(chaosVolumes)].id
	var from []*station
	_ = by.ask(5*time.Second, func(ctx context.Context) error { // without an answer, nothing moves
		v, _, err := by.client.AnyVolume(ctx, id)
		if err != nil {
			return err
		}
		from = slices.DeleteFunc(slices.Clone(c.stations), func(s *station) bool {
			return !slices.ContainsFunc(v.Holds, func(h api.Hold) bool { return h.Host == s.Name })
		})
		return nil
	})
	if len(from) != 1 || from[0].busy || from[0] == to {
		return nil
	}
	c.disturbed(from...)
	err := by.ask(20*time.Second, func(ctx context.Context) error {
		_, err := by.client.MoveVolume(ctx, id, to.Name, 5*time.Second)
		return err
	})
	if err == nil {
		c.counts.Add("volumes moved")
	}
	return &activeFault{hosts: from}
}
