// Package bundled_test tests the bundled etcd of a cluster: the built volagent-etcd and volctl, with
// several hosts on loopback addresses of one machine.
package bundled_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/shared"
)

func TestMain(m *testing.M) { harness.Main(m) }

// limit is the time in which a cluster reaches an expected state.
const limit = time.Minute

// rig is a number of hosts on one machine.
type rig struct {
	t    *testing.T
	dir  string
	net  string // the first three bytes of the hosts' addresses
	cmds map[int]*exec.Cmd
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, dir: t.TempDir(), net: fmt.Sprintf("127.%d.%d", 1+rand.IntN(254), rand.IntN(256)), cmds: map[int]*exec.Cmd{}}
	t.Cleanup(func() {
		for n := range r.cmds {
			r.kill(n)
		}
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(r.dir, "log*"))
			for _, log := range logs {
				raw, _ := os.ReadFile(log)
				t.Logf("%s:\n%s", log, raw[max(0, len(raw)-4000):])
			}
		}
	})
	return r
}

func (r *rig) data(n int) string   { return filepath.Join(r.dir, fmt.Sprintf("data%d", n)) }
func (r *rig) config(n int) string { return filepath.Join(r.dir, fmt.Sprintf("config%d", n)) }
func (r *rig) name(n int) string   { return fmt.Sprintf("h%d", n) }

// host returns the flags that describe a host.
func (r *rig) host(n int) []string {
	return []string{"--name", r.name(n), "--address", fmt.Sprintf("%s.%d", r.net, n), "--no-start"}
}

// try runs "volctl cluster" on a host.
func (r *rig) try(n int, stdin string, args ...string) harness.Result {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(harness.BinDir, "volctl"), append([]string{"cluster"}, args...)...)
	cmd.Env = append(os.Environ(), "VOLAGENT_ETCD_DIR="+r.data(n), "VOLAGENT_CONFIG_DIR="+r.config(n))
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	return harness.Result{Out: out.String(), Err: errs.String(), Code: cmd.ProcessState.ExitCode()}
}

// must runs a command that succeeds.
func (r *rig) must(n int, stdin string, args ...string) string {
	r.t.Helper()
	res := r.try(n, stdin, args...)
	if res.Code != 0 {
		r.t.Fatalf("on host %d: volctl cluster %s: exit %d\n%s%s", n, strings.Join(args, " "), res.Code, res.Out, res.Err)
	}
	return strings.TrimSpace(res.Out)
}

// refused runs a command that fails with an exit code and words.
func (r *rig) refused(n, code int, words, stdin string, args ...string) {
	r.t.Helper()
	res := r.try(n, stdin, args...)
	if res.Code != code || !strings.Contains(res.Err, words) {
		r.t.Errorf("on host %d: volctl cluster %s: exit %d\n%s%s\nwant exit %d, and %q", n, strings.Join(args, " "), res.Code, res.Out, res.Err, code, words)
	}
}

// start starts volagent-etcd of a host.
func (r *rig) start(n int) {
	r.t.Helper()
	log, err := os.OpenFile(filepath.Join(r.dir, fmt.Sprintf("log%d", n)), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(harness.BinDir, "volagent-etcd"), "--data-dir", r.data(n), "--config-dir", r.config(n))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		r.t.Fatal(err)
	}
	r.cmds[n] = cmd
}

// kill kills volagent-etcd of a host, if it still runs.
func (r *rig) kill(n int) {
	cmd := r.cmds[n]
	delete(r.cmds, n)
	if cmd != nil {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()
	}
}

// ended waits until volagent-etcd of a host ends, and returns its exit code.
func (r *rig) ended(n int) int {
	r.t.Helper()
	cmd := r.cmds[n]
	delete(r.cmds, n)
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait() // the exit code says whether it failed
	return cmd.ProcessState.ExitCode()
}

// log returns what volagent-etcd of a host has logged.
func (r *rig) log(n int) string {
	raw, _ := os.ReadFile(filepath.Join(r.dir, fmt.Sprintf("log%d", n)))
	return string(raw)
}

// first makes a cluster with the first host.
func (r *rig) first(more ...string) {
	r.t.Helper()
	r.must(1, "", append(append([]string{"init"}, r.host(1)...), more...)...)
	r.start(1)
	r.wait("the first host has no leader", func(st wire.ClusterStatus) bool { return st.Quorum && st.Schema > 0 })
}

// join lets a host join through a token of the first host, and starts it.
func (r *rig) join(n int, more ...string) {
	r.t.Helper()
	r.must(n, r.must(1, "", "token", "-q"), append(append([]string{"join"}, r.host(n)...), more...)...)
	r.start(n)
}

func (r *rig) status(n int) (st wire.ClusterStatus) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.must(n, "", "status", "-o", "json")), &st); err != nil {
		r.t.Fatal(err)
	}
	return st
}

// wait waits until the status that the first host shows has a property.
func (r *rig) wait(problem string, ok func(wire.ClusterStatus) bool) {
	r.t.Helper()
	r.waitOn(1, problem, ok)
}

func (r *rig) waitOn(n int, problem string, ok func(wire.ClusterStatus) bool) {
	r.t.Helper()
	var st wire.ClusterStatus
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if st = r.status(n); ok(st) {
			return
		}
	}
	r.t.Fatalf("%s: %+v", problem, st)
}

// votes waits until exactly the given hosts vote and others are learners, all healthy.
func (r *rig) votes(voters, learners []int) {
	r.t.Helper()
	names := func(ns []int) (all []string) {
		for _, n := range ns {
			all = append(all, r.name(n))
		}
		return all
	}
	r.waitOn(voters[0], fmt.Sprintf("not %v vote and %v learn", voters, learners), func(st wire.ClusterStatus) bool {
		var vote, learn []string
		for _, h := range st.Hosts {
			switch {
			case h.Role == wire.RoleClient:
			case !h.Healthy:
				return false
			case h.Voter:
				vote = append(vote, h.Name)
			default:
				learn = append(learn, h.Name)
			}
		}
		return slices.Equal(vote, names(voters)) && slices.Equal(learn, names(learners))
	})
}

// problem asserts that the status of a host shows a problem and its fix.
func (r *rig) problem(n int, text, fix string) {
	r.t.Helper()
	st := r.status(n)
	for _, p := range st.Problems {
		if strings.Contains(p.Text, text) && strings.Contains(p.Fix, fix) {
			return
		}
	}
	r.t.Errorf("on host %d, no problem %q with the fix %q in %+v", n, text, fix, st.Problems)
}

// store returns the store of a host's agent.
func (r *rig) store(n int) shared.Store {
	r.t.Helper()
	d := hostdir.Dir{Data: r.data(n)}
	s, err := d.Load()
	if err != nil {
		r.t.Fatal(err)
	}
	store, err := cluster.Open(r.t.Context(), cluster.Options{
		Endpoints: []string{s.ClientURL()}, Prefix: s.Prefix,
		CA: d.Path(hostdir.CACert), Cert: d.Path(hostdir.AgentCert), Key: d.Path(hostdir.AgentKey),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = store.Close() })
	return store
}

// do executes operations in a store, and returns the revision.
func (r *rig) do(store shared.Store, ops ...shared.Op) int64 {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	for {
		res, err := store.Do(ctx, shared.Txn{Then: ops})
		if err == nil {
			return res.Revision
		}
		if ctx.Err() != nil || !errors.Is(err, shared.ErrUnreachable) {
			r.t.Fatal(err)
		}
	}
}
