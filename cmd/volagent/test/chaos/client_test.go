package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// chaosClient is a client that sends one request at a time. Other clients do not detach its claims.
type chaosClient struct {
	*chaos
	name    string
	plan    *planner[clientKind]
	held    map[*chaosStorage]*opened // the volumes that this client has claimed
	private *chaosStorage             // a volume that only this client uses
	made    []*chaosStorage           // volumes that this client created
	names   int                       // number of names that this client has used
	holding string                    // name of this client's container, or ""
	inside  *chaosStorage             // the volume that the container uses
}

func newChaosClient(c *chaos, n int) *chaosClient {
	k := &chaosClient{chaos: c, name: fmt.Sprintf("c%d", n), held: map[*chaosStorage]*opened{}}
	k.plan = newPlanner(c.seed, uint64(n), 250*time.Millisecond, clientKinds(c.all, *chaosOnly))
	k.private = newStorage(privatePrefix+k.name, "rec", false)
	c.keep(k.private)
	return k
}

// run executes the steps of the plan until ctx ends, and then closes all open files.
func (k *chaosClient) run(ctx context.Context) {
	defer k.letGo()
	if err := k.registerAs(ctx, k.private, "p-"+k.name); err != nil && ctx.Err() == nil {
		k.private.log("it is registered later: %v", err)
	}
	for s := k.plan.next(); rest(ctx, s.pause); s = k.plan.next() {
		err := k.take(ctx, s)
		if ctx.Err() != nil {
			return
		}
		k.count.Add(fmt.Sprintf("%s: %s", s.kind, outcome(err)))
		if harness.CodeOf(err) == api.CodeUnreachable {
			_ = rest(ctx, 300*time.Millisecond) // the keeper is restarting the agent
		}
	}
}

// letGo closes all files that this client has open, so that the agent can unmount the volumes.
func (k *chaosClient) letGo() {
	for _, o := range k.held {
		o.close()
	}
}

// outcome returns a short name for the result of a request. The run accepts every error that has an
// API code.
func outcome(err error) string {
	var e *api.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return string(e.Code)
	default:
		return "failed here"
	}
}

// take performs one step of the client's plan.
func (k *chaosClient) take(ctx context.Context, s step[clientKind]) error {
	switch s.kind {
	case doClaim:
		return k.claimSome(ctx, s.dice)
	case doDetach:
		return k.detachSome(ctx, s.dice)
	case doVerify:
		return k.verifyAll()
	case doMount:
		return k.mountSome(s.dice)
	case doCreate:
		return k.create(ctx, s.dice)
	case doDelete:
		return k.remove(ctx, s.dice)
	case doExpand, doSnapshot:
		return k.change(ctx, s)
	case doBounce:
		return k.bounce(ctx, s.dice)
	case doForce:
		return k.force(ctx, s.dice)
	case doLazy:
		return k.lazy(ctx, s.dice)
	case doDrain:
		return k.drain(ctx)
	case doRun:
		return k.runContainer(ctx, s.dice)
	case doStop:
		return k.stopContainer(ctx)
	default:
		return k.look(ctx, s.dice)
	}
}

// some picks a random volume among those that this client may claim.
func (k *chaosClient) some(dice *rand.Rand) *chaosStorage {
	all := append(append(append([]*chaosStorage{}, k.shared...), k.served...), k.made...)
	all = append(all, k.private)
	return all[dice.IntN(len(all))]
}

// patient returns a random timeout for a request. Three of four timeouts are several seconds long,
// and the others are at most half a second.
func patient(dice *rand.Rand) time.Duration {
	if dice.IntN(4) == 0 {
		return time.Duration(1+dice.IntN(500)) * time.Millisecond
	}
	return time.Duration(2+dice.IntN(10)) * time.Second
}

// claimSome claims a volume and writes to it. If the client has already claimed the volume,
// claimSome only writes.
func (k *chaosClient) claimSome(ctx context.Context, dice *rand.Rand) error {
	s := k.some(dice)
	if o := k.held[s]; o != nil {
		return k.use(o)
	}
	o, err := k.claim(ctx, s, k.name, patient(dice))
	if err != nil {
		return err
	}
	k.held[s] = o
	return k.use(o)
}

// claim claims a volume and opens it. It checks that the open file belongs to the claimed volume.
func (k *chaosClient) claim(ctx context.Context, s *chaosStorage, alloc string, wait time.Duration) (*opened, error) {
	id, drains := s.now(), k.drains.Load()
	if id == "" {
		return nil, &api.Error{Code: api.CodeNotFound, Message: "not registered"}
	}
	c, err := k.api.ClaimVolume(ctx, id, alloc, api.ClaimRequest{}, wait)
	s.log("%s claimed %q for %s: %v", k.name, id, alloc, err)
	if harness.CodeOf(err) == api.CodeNotFound && s.isPrivate() {
		s.rename("") // a deregister has succeeded, but the client did not receive the answer
	}
	if err != nil {
		return nil, err
	}
	o, err := openClaimed(s, c.Path)
	if err == nil {
		if err = k.same(o); err != nil {
			o.close()
		}
	}
	switch {
	case err == nil:
		return o, nil
	case k.drains.Load() != drains, k.draining.Load() > 0:
		return nil, err // a drain may have detached the claim
	default:
		k.fail(s, "%s has claimed volume %q, and cannot use it: %v", alloc, id, err)
		return nil, err
	}
}

// use verifies the client's earlier writes to an open volume and writes to the volume again. When
// the write is acknowledged, the storage must still be connected to the host.
func (k *chaosClient) use(o *opened) error {
	if err := o.verify(k.name); err != nil {
		k.fail(o.s, "%s reads: %v", k.name, err)
		return err
	}
	if err := o.write(k.name); err != nil {
		k.fail(o.s, "%s cannot write: %v", k.name, err)
		return err
	}
	k.count.Add("writes")
	k.mustBeAttached(o)
	return nil
}

// mustBeAttached fails the run if the storage of an open volume is not connected to the host.
func (k *chaosClient) mustBeAttached(o *opened) {
	if ok, err := k.isAttached(o.s); err != nil || !ok {
		k.fail(o.s, "%s has a write acknowledged by storage that is detached (%v)", k.name, err)
	}
}

// detachSome detaches a volume that this client has claimed.
func (k *chaosClient) detachSome(ctx context.Context, dice *rand.Rand) error {
	s := k.some(dice)
	for one := range k.held { // pick an arbitrary claimed volume
		s = one
		break
	}
	return k.detach(ctx, s, k.name, apiclient.DetachOptions{Wait: patient(dice)})
}

// detach closes the volume and then detaches the claim.
func (k *chaosClient) detach(ctx context.Context, s *chaosStorage, alloc string, how apiclient.DetachOptions) error {
	if o := k.held[s]; o != nil && alloc == k.name {
		k.mustBeAttached(o)
		o.close()
		delete(k.held, s)
	}
	err := k.api.DetachClaim(ctx, s.now(), alloc, how)
	s.log("%s detached %q from %s, wait %s %s: %v", k.name, s.now(), alloc, how.Wait, how.WithoutPlugin, err)
	return err
}

// verifyAll reads back the client's writes on all volumes that it has claimed. It fails the run if
// any data differs.
func (k *chaosClient) verifyAll() error {
	for _, o := range k.held {
		if err := o.verify(k.name); err != nil {
			k.fail(o.s, "%s reads: %v", k.name, err)
			return err
		}
		k.mustBeAttached(o)
	}
	return nil
}

// mountSome mounts a file system volume with `volctl mount`, as fstab does. It writes to the volume
// and unmounts it.
func (k *chaosClient) mountSome(dice *rand.Rand) error {
	s := k.some(dice)
	if s.raw || k.held[s] != nil {
		return nil
	}
	dir, err := k.atDir(k.name)
	if err != nil {
		return err
	}
	drains := k.drains.Load()
	r := k.Try("mount", s.now(), dir, "-o", "alloc=m-"+k.name+",timeout="+patient(dice).String())
	s.log("%s mounted %q: exit %d %s", k.name, s.now(), r.Code, strings.TrimSpace(r.Err))
	if r.Code == 0 {
		o, err := openClaimed(s, dir)
		if err == nil {
			err = k.same(o)
		}
		switch {
		case err == nil:
			_ = k.use(o) // use reports its failures to the run
			o.close()
		case k.drains.Load() == drains && k.draining.Load() == 0:
			k.fail(s, "%s has mounted volume %q at %s, and cannot use it: %v", k.name, s.now(), dir, err)
		}
	}
	if out := k.Try("umount", dir); out.Code != 0 && syscall.Unmount(dir, unix.UMOUNT_NOFOLLOW) == nil {
		s.log("%s unmounted it by itself: %s", k.name, strings.TrimSpace(out.Err))
	}
	if r.Code != 0 {
		return &api.Error{Code: api.Code(fmt.Sprintf("exit %d", r.Code)), Message: r.Err}
	}
	return nil
}

// look sends one random request that only reads the agent's state.
func (k *chaosClient) look(ctx context.Context, dice *rand.Rand) error {
	var err error
	switch dice.IntN(4) {
	case 0:
		_, err = k.api.Node(ctx)
	case 1:
		_, err = k.api.Doctor(ctx)
	case 2:
		_, err = k.api.Volumes(ctx)
	default:
		_, err = k.api.Volume(ctx, k.some(dice).now())
	}
	return err
}

// drain drains the host and ends the drain a moment later.
func (k *chaosClient) drain(ctx context.Context) error {
	k.drains.Add(1)
	k.draining.Add(1)
	defer k.draining.Add(-1)
	_, err := k.api.Drain(ctx, 200*time.Millisecond)
	for range 100 {
		_, undo := k.api.Undrain(ctx)
		if undo == nil || !rest(ctx, 100*time.Millisecond) {
			break
		}
	}
	return err
}
