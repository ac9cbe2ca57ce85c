package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"sync/atomic"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// chaosUser is one client of one host in TestClusterChaos.
type chaosUser struct {
	*clusterChaos
	*station
	name  string
	dice  *rand.Rand
	names int         // the number of names of allocs and files that the user has used
	items []*userItem // protected by the gate of the station
	given atomic.Bool // the test has failed, and the user must end at once
}

// userItem is a claim that a user has requested, and whose end it does not know yet.
type userItem struct {
	request
	path string
	from int64 // the begin of the request

	// With confirmed, the history has the claim with success. With pending, the history has a claim that was
	// refused and may still exist. Without both, the result is not known, because the host was disturbed.
	confirmed, pending bool

	leaving bool  // the user does not need the claim any more
	left    int64 // the begin of the first request that ends the claim
}

// run lets the user work until the end of the run.
func (u *chaosUser) run() {
	for !u.given.Load() {
		if u.quiet.Load() {
			time.Sleep(10 * time.Millisecond) // the pace of the user
			continue
		}
		u.gate.RLock()
		more := u.step()
		u.gate.RUnlock()
		if !more {
			return
		}
		time.Sleep(time.Duration(u.dice.IntN(100)) * time.Millisecond) // the pace of the user
	}
}

// step sends one request. It returns false at the end of the user.
func (u *chaosUser) step() (more bool) {
	phase := u.phase.Load()
	if phase == phaseEnd {
		for _, it := range u.items {
			it.leave(u.now())
		}
		if len(u.items) == 0 {
			return false
		}
	}
	if i := slices.IndexFunc(u.items, func(it *userItem) bool { return it.leaving }); i >= 0 && (phase != phaseWork || u.dice.IntN(2) == 0) {
		u.end(u.items[i])
		return true
	}
	if phase != phaseWork {
		return true
	}

	used := slices.DeleteFunc(slices.Clone(u.items), func(it *userItem) bool { return it.leaving || !it.confirmed })
	switch n := u.dice.IntN(100); {
	case n < 15:
		u.status()
	case len(used) > 0 && n < 45:
		u.write(used[u.dice.IntN(len(used))])
	case len(used) > 0 && n < 60, len(u.items) >= claimsPerUser:
		it := u.items[u.dice.IntN(len(u.items))]
		it.leave(u.now())
		u.end(it)
	default:
		u.claim()
	}
	return true
}

// leave says that the user does not need the claim any more.
func (it *userItem) leave(now int64) {
	if !it.leaving {
		it.leaving, it.left = true, now
	}
}

// volume returns a random volume. The first ones are chosen most often, so that hosts compete.
func (u *chaosUser) volume() choice {
	return u.volumes[min(u.dice.IntN(chaosVolumes), u.dice.IntN(chaosVolumes))]
}

// claim claims a random volume in a random mode.
func (u *chaosUser) claim() {
	v := u.volume()
	u.names++
	it := &userItem{from: u.now(), request: request{
		kind: kindClaim, volume: v.id, host: u.number, alloc: fmt.Sprintf("%s-%d", u.name, u.names), access: v.modes[u.dice.IntN(len(v.modes))],
	}}
	readOnly := u.dice.IntN(3) == 0
	it.reader = readOnly && it.access == "multi-node-single-writer"
	wait := []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 10 * time.Second, 30 * time.Second}[u.dice.IntN(5)]
	var got *api.Claim
	err := u.ask(wait+20*time.Second, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(u.disturbing, cancel)() // a wait ends with the last fault
		got, err = u.client.ClaimVolume(ctx, it.volume, it.alloc, api.ClaimRequest{AccessMode: it.access, ReadOnly: readOnly}, wait)
		return err
	})
	to := u.now()
	u.items = append(u.items, it)
	switch {
	case !u.steady():
		u.counts.Add("claims on a disturbed host")
	case err == nil:
		u.counts.Add("claims")
		it.confirmed, it.path = true, got.Path
		u.record(u.number, it.request, answer{done: true}, it.from, to)
	default:
		u.counts.Add("claims refused")
		it.pending = true
		u.record(u.number, it.request, answer{holders: namedHolders(err), text: err.Error()}, it.from, to)
		it.leave(to)
		u.end(it)
	}
	if err == nil && readOnly {
		it.path = "" // it cannot be written
	}
}

// end detaches a claim. If it does not succeed, the user later tries again.
func (u *chaosUser) end(it *userItem) {
	err := u.ask(40*time.Second, func(ctx context.Context) error {
		return u.client.DetachClaim(ctx, it.volume, it.alloc, apiclient.DetachOptions{Wait: 15 * time.Second})
	})
	if !u.steady() {
		return
	}
	if err != nil && harness.CodeOf(err) != api.CodeNotFound {
		u.counts.Add("detaches that failed")
		return
	}
	from := it.left
	if lost := u.unsureFrom(); err != nil && it.confirmed && lost > 0 { // the claim ended before the request
		u.counts.Add("claims lost")
		from = min(from, max(lost, it.from))
	} else {
		u.counts.Add("detaches")
	}
	u.ended(it, from)
}

// ended records the end of a claim, and forgets it. The host may keep its hold until the calls to its driver
// succeed again.
func (u *chaosUser) ended(it *userItem, from int64) {
	q := it.request
	q.kind = kindDetach
	if it.pending {
		q.kind = kindCleanUp
	}
	u.record(u.number, q, answer{done: true, keeps: true}, from, u.now())
	u.items = slices.DeleteFunc(u.items, func(other *userItem) bool { return other == it })
}

// write writes and synchronises a new file on a claimed volume.
func (u *chaosUser) write(it *userItem) {
	if it.path == "" {
		return
	}
	u.names++
	name, text := fmt.Sprintf("%s-%d", u.name, u.names), fmt.Sprintf("%s on %s at %d", it.alloc, u.Name, u.now())
	// The working directory stays in the mount that the command has checked.
	const script = `cd "$1" && mountpoint -q . && printf %s "$3" | dd of="$2" conv=fsync status=none`
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	out, err := u.output(exec.CommandContext(ctx, "sh", "-c", script, "sh", it.path, name, text))
	switch {
	case err == nil:
		u.counts.Add("writes")
		u.acked.add(it.volume, name, text)
	case u.steady() && u.unsureFrom() == 0:
		u.fail("%s on %s: cannot write to %s of %s: %v: %s", u.name, u.Name, it.path, it.volume, err, out)
	default:
		u.counts.Add("writes that failed on a disturbed host")
	}
}

// output runs a command on the host.
func (s *station) output(cmd *exec.Cmd) (string, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	s.power.RLock()
	err := s.Enter(cmd.Start)
	s.power.RUnlock()
	if err != nil {
		return "", err
	}
	err = cmd.Wait()
	return out.String(), err
}

// status asks for the holds on a random volume.
func (u *chaosUser) status() {
	q := request{kind: kindStatus, volume: u.volume().id, host: u.number}
	var v *api.Volume
	var warnings []string
	from, restores := u.now(), u.restores.Load()
	err := u.ask(20*time.Second, func(ctx context.Context) (err error) {
		v, warnings, err = u.client.AnyVolume(ctx, q.volume)
		return err
	})
	to := u.now()
	if err != nil || len(warnings) > 0 {
		return // the host does not reach etcd
	}
	if restores%2 == 1 || restores != u.restores.Load() {
		return // the hosts have not written their holds anew
	}
	u.counts.Add("statuses")
	u.record(u.number, q, answer{done: true, seen: u.sight(q.volume, v.Holds, span{from, to})}, from, to)
}
