package cluster_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/volmgr/shared"
)

// disturbed says that from now on, the host may lose claims without the knowledge of its users. The time
// of the end is not known until expire is called.
func (c *clusterChaos) disturbed(stations ...*station) {
	for _, s := range stations {
		s.since.CompareAndSwap(0, cmp.Or(s.unsureFrom(), max(c.now(), 1)))
		s.unsure.Store(true)
		s.certainAt = math.MaxInt64
	}
}

// examine finds out which claims of a disturbed host still exist, and tells its users. It does nothing while a
// user waits for an answer, or the host does not reach etcd. It returns why the host is still disturbed.
func (c *clusterChaos) examine(s *station) error {
	s.quiet.Store(true)
	if !s.gate.TryLock() {
		return errors.New("a user waits for an answer")
	}
	defer s.gate.Unlock()
	defer s.quiet.Store(false)

	begun := c.now()
	var claims map[string]api.Claim
	holds := map[string]bool{}
	err := s.ask(2*time.Second, func(ctx context.Context) (err error) {
		claims, err = s.look(ctx, holds)
		return err
	})
	if err != nil {
		return err
	}
	for _, u := range s.users {
		for _, it := range slices.Clone(u.items) {
			u.resolve(it, claims, holds[it.volume])
			delete(claims, it.volume+" "+it.alloc)
		}
	}

	// Older records may have brought claims back.
	for _, one := range claims {
		u := s.users[0]
		it := &userItem{request: request{kind: kindClaim, volume: one.Volume, host: s.number, alloc: one.Alloc, access: one.AccessMode}, pending: true}
		u.record(s.number, it.request, answer{}, s.lossFrom(), c.now())
		it.leave(c.now())
		u.items = append(u.items, it)
		c.counts.Add("claims that came back")
	}
	s.verified.Store(max(begun, 1))
	s.since.Store(0)
	if begun >= s.certainAt {
		s.unsure.Store(false)
	}
	return nil
}

// lossFrom returns the earliest time at which the host may have lost a claim that an examination misses.
func (s *station) lossFrom() int64 { return cmp.Or(s.since.Load(), s.verified.Load()) }

// look returns the claims of the host, and notes of which volumes it has a hold. It fails until the host has
// undone all claims whose hold it has lost.
func (s *station) look(ctx context.Context, holds map[string]bool) (map[string]api.Claim, error) {
	node, err := s.client.Node(ctx)
	if err != nil {
		return nil, err
	}
	if !node.Cluster.Reachable {
		return nil, fmt.Errorf("the agent does not reach etcd: %s", node.Cluster.Reason)
	}
	all, err := s.client.Claims(ctx, apiclient.ClaimFilter{})
	if err != nil {
		return nil, err
	}
	claims := map[string]api.Claim{}
	for _, one := range all {
		claims[one.Volume+" "+one.Alloc] = one
	}
	volumes := map[string]bool{}
	for _, u := range s.users {
		for _, it := range u.items {
			volumes[it.volume] = true
		}
	}
	for id := range volumes {
		v, warnings, err := s.client.AnyVolume(ctx, id)
		if err != nil {
			return nil, err
		}
		if len(warnings) > 0 {
			return nil, fmt.Errorf("the status of %s is not complete: %q", id, warnings)
		}
		holds[id] = slices.ContainsFunc(v.Holds, func(h api.Hold) bool { return h.Host == s.Name })
	}
	for _, u := range s.users {
		for _, it := range u.items {
			if one, exists := claims[it.volume+" "+it.alloc]; exists && it.confirmed && !holds[it.volume] {
				return nil, fmt.Errorf("%s has the claim of %s on %s (%s) without a hold", s.Name, it.alloc, it.volume, one.State)
			}
		}
	}
	return claims, nil
}

// resolve records whether an item still exists after the host was disturbed.
func (u *chaosUser) resolve(it *userItem, claims map[string]api.Claim, held bool) {
	one, exists := claims[it.volume+" "+it.alloc]
	now := u.now()
	switch {
	case it.confirmed && !exists:
		from := max(u.lossFrom(), it.from)
		if it.left > 0 {
			from = min(from, it.left)
		} else {
			u.counts.Add("claims lost")
		}
		u.ended(it, from)
	case it.pending && !exists:
		u.ended(it, it.left)
	case it.confirmed, it.pending:
	case exists && one.State == api.ClaimMounted && held:
		it.confirmed = true
		if !one.ReadOnly {
			it.path = one.Path
		}
		u.record(u.number, it.request, answer{done: true}, it.from, now)
	default:
		it.pending = true
		u.record(u.number, it.request, answer{}, it.from, now)
		it.leave(now)
		if !exists {
			u.ended(it, now)
		}
	}
}

// examineAll examines the hosts whose faults have ended, and again when their leases can no longer end. It
// returns the reasons of those that remain disturbed or unsure.
func (c *clusterChaos) examineAll() (reasons []string) {
	for _, s := range c.stations {
		if s.busy || s.steady() && !s.unsure.Load() {
			continue
		}
		if !s.steady() || c.now() >= s.certainAt {
			if err := c.examine(s); err != nil {
				reasons = append(reasons, fmt.Sprintf("%s: %v", s.Name, err))
				continue
			}
		}
		if s.unsure.Load() {
			reasons = append(reasons, s.Name+": its lease may still end")
		}
	}
	return reasons
}

// settle waits until no host is disturbed or unsure.
func (c *clusterChaos) settle(within time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		reasons := c.examineAll()
		if len(reasons) == 0 {
			break
		}
		if time.Now().After(end) {
			c.t.Fatalf("after all faults, hosts remain disturbed:\n%s", strings.Join(reasons, "\n"))
		}
	}
}

// awaitTidy waits until the users have ended all claims whose requests have failed.
func (c *clusterChaos) awaitTidy() {
	c.t.Helper()
	for end := time.Now().Add(*clusterChaosWithin + 30*time.Second); ; time.Sleep(50 * time.Millisecond) {
		var left []string
		for _, s := range c.stations {
			s.gate.Lock()
			for _, u := range s.users {
				for _, it := range u.items {
					if it.leaving {
						left = append(left, fmt.Sprintf("%s: %s of %s", s.Name, it.volume, it.alloc))
					}
				}
			}
			s.gate.Unlock()
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("after all faults, claims do not end:\n%s", strings.Join(left, "\n"))
		}
	}
}

// expectAgreement waits until exactly the hosts with claims have holds, mounts and attachments.
func (c *clusterChaos) expectAgreement(after string, begun time.Time) {
	c.t.Helper()
	want := map[string]bool{}
	for _, s := range c.stations {
		s.gate.Lock()
		for _, u := range s.users {
			for _, it := range u.items {
				want[it.volume+" on "+s.Name] = true
			}
		}
		s.gate.Unlock()
	}
	for {
		wrong := c.disagreement(want)
		if took := time.Since(begun); wrong == "" {
			c.t.Logf("holds, mounts and attachments agree %s after %s: %d", took.Round(time.Millisecond), after, len(want))
			return
		} else if took > *clusterChaosWithin {
			c.t.Fatalf("%s after %s:\n%s", took.Round(time.Second), after, wrong)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// disagreement compares the holds, mounts and attachments with the expected ones.
func (c *clusterChaos) disagreement(want map[string]bool) string {
	c.t.Helper()
	holds, mounts, attached := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, kv := range c.keys() {
		if host, id, ok := shared.HoldIDs(kv.Key); ok && strings.HasPrefix(kv.Key, shared.HoldsOf(host).Key) {
			holds[id+" on "+host] = true
		}
	}
	for _, s := range c.stations {
		for _, m := range diskMounted.FindAllStringSubmatch(s.Mounts(), -1) {
			mounts[m[1]+" on "+s.Name] = true
		}
	}
	for _, a := range c.san.Attachments() {
		attached[strings.TrimPrefix(a.Volume, "disk-")+" on "+a.Node] = true
	}
	var wrong strings.Builder
	for _, one := range []struct {
		what string
		got  map[string]bool
	}{{"holds", holds}, {"mounts", mounts}, {"attachments", attached}} {
		if !maps.Equal(one.got, want) {
			fmt.Fprintf(&wrong, "%s: %q are missing, and nobody needs %q\n", one.what, without(want, one.got), without(one.got, want))
		}
	}
	return wrong.String()
}

// without returns the members of a set that another one has not, sorted.
func without(set, other map[string]bool) (rest []string) {
	for one := range set {
		if !other[one] {
			rest = append(rest, one)
		}
	}
	slices.Sort(rest)
	return rest
}

// expectNoKeys waits until etcd has no record of the use of a volume.
func (c *clusterChaos) expectNoKeys() {
	c.t.Helper()
	var left []string
	c.Hosts[1].Await("the end of all records of use", func() bool {
		left = nil
		for _, kv := range c.keys() {
			for _, prefix := range []string{"holds/", "calls/", "tasks/", "users/", "moves/"} {
				if strings.HasPrefix(kv.Key, prefix) {
					left = append(left, kv.Key)
				}
			}
		}
		return len(left) == 0
	})
}
