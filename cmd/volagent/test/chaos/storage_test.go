package chaos_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// prepareVolumes creates the volumes that all clients share: file systems and raw devices of both
// plugins.
func (c *chaos) prepareVolumes() {
	c.T.Helper()
	for i := range 6 {
		c.shared = append(c.shared, newStorage(fmt.Sprintf("ext/s%d", i), "rec", i >= 4))
	}
	for _, s := range c.shared {
		c.Must(c.registerAs(c.T.Context(), s, s.name[len("ext/"):]))
	}
	for _, one := range []struct{ id, mode, fs string }{
		{"image", "file-system", "ext4"}, {"served", "file-system", "ext4"}, {"files", "file-system", ""}, {"raw", "block-device", ""},
	} {
		s := newStorage(one.id, "local", one.mode == "block-device")
		spec := api.VolumeSpec{
			ID: one.id, PluginID: "local", CapacityMin: 64 << 20, Parameters: map[string]string{"type": "image"},
			Capabilities: []api.Capability{{AccessMode: "single-node-multi-writer", AttachmentMode: one.mode}},
		}
		switch {
		case one.id == "files":
			spec.CapacityMin, spec.Parameters = 0, nil
		case one.fs != "":
			spec.MountOptions = &api.MountOptions{FSType: one.fs}
		}
		_, err := c.api.CreateVolumeWithin(c.T.Context(), spec, time.Minute)
		c.Must(err)
		s.rename(one.id)
		c.served = append(c.served, s)
	}
}

// create creates a volume that only this client changes. A client keeps at most three such volumes.
func (k *chaosClient) create(ctx context.Context, dice *rand.Rand) error {
	if len(k.made) >= 3 {
		return k.remove(ctx, dice)
	}
	k.names++
	id := fmt.Sprintf("n-%s-%d", k.name, k.names)
	spec := harness.MultiWriterSpec(id, "")
	spec.CapacityMin = 1 << 20
	plugin := "rec"
	if dice.IntN(4) == 0 {
		plugin = "local"
		spec.CapacityMin = 0
	}
	spec.PluginID = plugin
	s := newStorage(id, plugin, false)
	s.rename(id)
	k.keep(s) // a create with an unknown result may have succeeded
	_, err := k.api.CreateVolumeWithin(ctx, spec, patient(dice))
	s.log("%s created it: %v", k.name, err)
	k.made = append(k.made, s)
	return err
}

// remove deletes a volume that this client created, with all data.
func (k *chaosClient) remove(ctx context.Context, dice *rand.Rand) error {
	if len(k.made) == 0 {
		return nil
	}
	s := k.made[dice.IntN(len(k.made))]
	if k.held[s] != nil {
		return k.detach(ctx, s, k.name, apiclient.DetachOptions{Wait: patient(dice)})
	}
	err := k.destroy(ctx, s.now())
	if harness.CodeOf(err) != api.CodeRefused {
		s.doomed.Store(true)
	}
	s.log("%s deleted it: %v", k.name, err)
	if err == nil || harness.CodeOf(err) == api.CodeNotFound {
		k.made = slices.DeleteFunc(k.made, func(o *chaosStorage) bool { return o == s })
		k.forget(s)
	}
	return err
}

// change expands a volume that this client created, or takes a snapshot of it.
func (k *chaosClient) change(ctx context.Context, t step[clientKind]) error {
	if len(k.made) == 0 {
		return nil
	}
	s := k.made[t.dice.IntN(len(k.made))]
	if s.plugin != "rec" {
		return nil
	}
	if t.kind == doExpand {
		_, err := k.api.ExpandVolume(ctx, s.now(), int64(2+t.dice.IntN(30))<<20, patient(t.dice))
		s.log("%s expanded it: %v", k.name, err)
		return err
	}
	k.names++
	snap, err := k.api.CreateSnapshot(ctx, api.SnapshotRequest{Volume: s.now(), Name: fmt.Sprintf("snap-%s-%d", k.name, k.names)}, patient(t.dice))
	s.log("%s took a snapshot: %v", k.name, err)
	if err == nil && snap.ID != "" {
		err = k.api.DeleteSnapshot(ctx, "rec", snap.ID, api.SnapshotRef{}, patient(t.dice))
		s.log("%s deleted the snapshot: %v", k.name, err)
	}
	return err
}

// bounce detaches the client's private volume while an undo call is slow or late. It claims the
// volume again before the call ends. Sometimes it kills the agent between the two requests.
func (k *chaosClient) bounce(ctx context.Context, dice *rand.Rand) error {
	s := k.private
	o, err := k.claimPrivate(ctx, dice)
	if err != nil {
		return err
	}
	f := csitest.Fault{Method: someCall(dice, undoing), Volume: s.name, Delay: fraction(dice, 0.2, 0.9)}
	if dice.IntN(2) == 0 {
		late(&f, dice)
	}
	ids, err := k.Config.Faults().Add(f)
	if err != nil {
		return err
	}
	defer func() { _ = k.Config.Faults().Remove(ids...) }() // a failure recurs in Add
	k.mustBeAttached(o)
	wait := time.Duration(dice.IntN(2)) * fraction(dice, 0, 1.5)
	err = k.detach(ctx, s, k.name, apiclient.DetachOptions{Wait: wait})
	again := k.name + "-again"
	if dice.IntN(4) == 0 {
		k.agentDies(ctx, fraction(dice, 0, 0.3))
	}
	_ = rest(ctx, fraction(dice, 0, 0.4))
	_, claimed := k.api.ClaimVolume(ctx, s.now(), again, api.ClaimRequest{}, 0)
	s.log("%s claims it for %s meanwhile: %v", k.name, again, claimed)
	if dice.IntN(6) == 0 {
		k.agentDies(ctx, fraction(dice, 0, 0.3))
	}
	o, usable := k.claim(ctx, s, again, time.Duration(5+dice.IntN(5))*time.Second)
	if usable == nil {
		err = k.useFor(ctx, o, fraction(dice, 0.1, 1.5))
		o.close()
	}
	return k.giveBack(ctx, s, again, err)
}

// claimPrivate claims the client's private volume and writes to it.
func (k *chaosClient) claimPrivate(ctx context.Context, dice *rand.Rand) (*opened, error) {
	s := k.private
	if o := k.held[s]; o != nil {
		return o, k.use(o)
	}
	if s.now() == "" {
		if err := k.registerAs(ctx, s, "p-"+k.name); err != nil {
			return nil, err
		}
	}
	o, err := k.claim(ctx, s, k.name, patient(dice))
	if err != nil {
		return nil, err
	}
	k.held[s] = o
	return o, k.use(o)
}

// useFor writes to a volume repeatedly for the duration d, because a late effect of an earlier call
// may disconnect the storage.
func (k *chaosClient) useFor(ctx context.Context, o *opened, d time.Duration) error {
	for end := time.Now().Add(d); ; {
		if err := k.use(o); err != nil {
			return err
		}
		if !rest(ctx, 100*time.Millisecond) || time.Now().After(end) {
			return nil
		}
	}
}

// giveBack detaches the claim of an alloc. If the argument first is an error, giveBack returns that
// error. Otherwise it returns the error of the detach.
func (k *chaosClient) giveBack(ctx context.Context, s *chaosStorage, alloc string, first error) error {
	err := k.api.DetachClaim(ctx, s.now(), alloc, apiclient.DetachOptions{Wait: 5 * time.Second})
	s.log("%s detached %q from %s: %v", k.name, s.now(), alloc, err)
	if first != nil {
		return first
	}
	return err
}

// agentDies kills the agent after the given delay.
func (k *chaosClient) agentDies(ctx context.Context, after time.Duration) {
	if !slices.Contains(troubleKinds(k.all, *chaosTrouble), killAgent) || !rest(ctx, after) {
		return
	}
	k.agent.kill(syscall.SIGKILL)
}

// lazy detaches the client's private volume without the plugin. Sometimes a file stays open, and
// the client continues to write to it.
func (k *chaosClient) lazy(ctx context.Context, dice *rand.Rand) error {
	o, err := k.claimPrivate(ctx, dice)
	if err != nil {
		return err
	}
	s, how := k.private, apiclient.DetachOptions{Wait: patient(dice), WithoutPlugin: []string{"umount", "force", "lazy"}[dice.IntN(3)]}
	if dice.IntN(2) == 0 {
		return k.detach(ctx, s, k.name, how)
	}
	delete(k.held, s)
	defer o.close()
	err = k.api.DetachClaim(ctx, s.now(), k.name, how)
	s.log("%s detached %q from %s with a file open %+v: %v", k.name, s.now(), k.name, how, err)
	if used := k.useFor(ctx, o, fraction(dice, 0, 0.5)); used != nil {
		return used
	}
	return err
}

// force deregisters the client's private volume by force while a process uses the volume. It then
// registers the storage again, under the same volume id or a new one.
func (k *chaosClient) force(ctx context.Context, dice *rand.Rand) error {
	s := k.private
	o, err := k.claimPrivate(ctx, dice)
	if err != nil {
		return err
	}
	delete(k.held, s) // the claim ends, but the file stays open
	defer o.close()
	was := s.now()
	how := apiclient.DetachOptions{Wait: time.Duration(dice.IntN(800)) * time.Millisecond}
	if dice.IntN(3) == 0 {
		how.WithoutPlugin = []string{"umount", "lazy"}[dice.IntN(2)]
	}
	err = k.api.DetachClaim(ctx, was, k.name, how)
	s.log("%s detached %q with a file open %+v: %v", k.name, was, how, err)
	res, err := k.api.DeregisterVolume(ctx, was, true)
	s.log("%s deregistered %q by force: %+v, %v", k.name, was, res, err)
	if err != nil {
		return err
	}
	s.rename("")
	id := was
	if dice.IntN(2) == 0 {
		k.names++
		id = fmt.Sprintf("p-%s-%d", k.name, k.names)
	}
	if err := k.registerAs(ctx, s, id); err != nil {
		return err
	}
	again := k.name + "-two"
	_, err = k.api.ClaimVolume(ctx, id, again, api.ClaimRequest{}, 0)
	s.log("%s claims %q for %s: %v", k.name, id, again, err)
	if dice.IntN(3) == 0 {
		k.agentDies(ctx, fraction(dice, 0, 0.3))
	}
	_ = rest(ctx, fraction(dice, 0, 0.5))
	how = apiclient.DetachOptions{Wait: fraction(dice, 0, 1)}
	err = k.api.DetachClaim(ctx, id, again, how)
	s.log("%s detached %q from %s: %v", k.name, id, again, err)
	_ = rest(ctx, fraction(dice, 0, 0.5))
	return k.useWhileForced(o, err)
}

// useWhileForced writes to the file that stayed open during a forced deregister. The acknowledged
// data must still exist afterwards.
func (k *chaosClient) useWhileForced(o *opened, first error) error {
	if err := k.use(o); err != nil {
		return err
	}
	return first
}
