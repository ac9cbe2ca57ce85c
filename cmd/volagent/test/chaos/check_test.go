package chaos_test

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// encoded returns b as base64 text, which a container's shell can decode.
func encoded(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// settleDown removes all faults and compares all acknowledged data with the content of the volumes.
// Then it detaches all claims, removes all volumes, and asserts that no leftover remains on the
// host.
func (c *chaos) settleDown() {
	c.T.Helper()
	patience := chaosSettles
	if c.box != nil {
		patience += chaosForgets
	}
	ctx, cancel := context.WithTimeout(c.T.Context(), patience)
	defer cancel()
	c.Must(c.Config.Faults().Clear())
	c.checkRules(0)
	if c.box != nil {
		c.boxMu.Lock()
		c.until(ctx, nil, "the containers to go", func() error { return c.box.RemoveAll() })
		c.boxMu.Unlock()
	}
	for _, p := range []string{"rec", "local"} {
		c.until(ctx, nil, "plugin "+p, func() error { _, err := c.api.WaitPlugin(ctx, p, 10*time.Second); return err })
	}
	c.until(ctx, nil, "the end of a drain", func() error { _, err := c.api.Undrain(ctx); return err })
	c.detachEverything(ctx)
	var wg sync.WaitGroup
	for _, s := range c.everything() {
		wg.Go(func() { c.readBack(ctx, s) })
	}
	wg.Wait()
	c.detachEverything(ctx)
	c.removeEverything(ctx)
	c.until(ctx, nil, "the end of all snapshots", func() error { return c.forgetSnapshots(ctx) })
	c.until(ctx, nil, "nothing to be left", func() error { return c.leftOnHost(ctx) })
	c.checkRules(0)
}

// until calls the function try repeatedly until try returns no error.
func (c *chaos) until(ctx context.Context, s *chaosStorage, what string, try func() error) {
	err := try()
	for err != nil && rest(ctx, 100*time.Millisecond) && !c.T.Failed() {
		if now := try(); ctx.Err() == nil {
			err = now // keep the last error from before the end of ctx
		}
	}
	if err != nil {
		c.fail(s, "did not come true in time: %s: %v", what, err)
	}
}

// unmountEverything unmounts all volumes from the clients' own directories. Such a mount remains if
// the agent mounted the volume after the client had stopped waiting.
func (c *chaos) unmountEverything() {
	points, err := filepath.Glob(filepath.Join(c.Dir, "at", "*"))
	c.Must(err)
	for _, dir := range points {
		_ = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW) // Unmount fails if nothing is mounted there
	}
}

// detachEverything detaches all remaining claims.
func (c *chaos) detachEverything(ctx context.Context) {
	c.until(ctx, nil, "the end of all claims", func() error {
		c.unmountEverything()
		claims, err := c.api.Claims(ctx, apiclient.ClaimFilter{})
		if err != nil {
			return err
		}
		for _, one := range claims {
			if one.Owner.Kind == api.OwnerRuntime {
				err = errors.Join(err, fmt.Errorf("container runtime still has %q", one.Volume))
				continue
			}
			gone := c.api.DetachClaim(ctx, one.Volume, one.Alloc, apiclient.DetachOptions{Wait: 5 * time.Second})
			if harness.CodeOf(gone) != api.CodeNotFound {
				err = errors.Join(err, gone)
			}
		}
		return err
	})
}

// readBack compares the content of a volume with the acknowledged writes to it.
func (c *chaos) readBack(ctx context.Context, s *chaosStorage) {
	writers := s.ledger.writers()
	if len(writers) == 0 || s.doomed.Load() || c.T.Failed() {
		return
	}
	c.until(ctx, s, "reading back "+s.name, func() error {
		if s.now() == "" {
			if err := c.registerAs(ctx, s, "back-"+filepath.Base(s.name)); err != nil {
				return err
			}
		}
		claim, err := c.api.ClaimVolume(ctx, s.now(), "reader", api.ClaimRequest{}, 10*time.Second)
		if harness.CodeOf(err) == api.CodeNotFound && s.isPrivate() {
			s.rename("") // a deregister has succeeded, but the client did not receive the answer
		}
		if err != nil {
			return err
		}
		o, err := openClaimed(s, claim.Path)
		if err != nil {
			return err
		}
		defer o.close()
		if err := errors.Join(c.same(o), o.verify(writers...)); err != nil {
			c.fail(s, "what was acknowledged is not there: %v", err)
		}
		c.count.Add("volumes read back")
		return nil
	})
}

// removeEverything deregisters the registered volumes and deletes the created volumes.
func (c *chaos) removeEverything(ctx context.Context) {
	c.until(ctx, nil, "the end of all volumes", func() error {
		vols, err := c.api.Volumes(ctx)
		if err != nil {
			return err
		}
		var errs []error
		for _, v := range vols {
			if strings.HasPrefix(v.Spec.ExternalID, "ext/") {
				_, err = c.api.DeregisterVolume(ctx, v.Spec.ID, false)
			} else {
				err = c.destroy(ctx, v.Spec.ID)
			}
			if harness.CodeOf(err) != api.CodeNotFound {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
}

// forgetSnapshots makes the agent forget all snapshots whose creation did not complete.
func (c *chaos) forgetSnapshots(ctx context.Context) error {
	all, err := c.api.Snapshots(ctx, apiclient.SnapshotFilter{Pending: true})
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range all.Snapshots {
		if _, err := c.api.ForgetSnapshot(ctx, s.PluginID, cmp.Or(s.ID, s.Name)); harness.CodeOf(err) != api.CodeNotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// destroy deletes a volume. If the agent does not know the volume's external id, because no create
// has succeeded yet, destroy first repeats the create.
func (c *chaos) destroy(ctx context.Context, id string) error {
	_, err := c.api.DeleteVolume(ctx, id, "")
	if err == nil || harness.CodeOf(err) == api.CodeNotFound {
		return err
	}
	v, looked := c.api.Volume(ctx, id)
	if looked != nil || v.Spec.ExternalID != "" {
		return err
	}
	if _, err := c.api.CreateVolumeWithin(ctx, v.Spec, 5*time.Second); err != nil {
		return err
	}
	_, err = c.api.DeleteVolume(ctx, id, "")
	return err
}

// leftOnHost returns an error that names all leftovers on the host. Leftovers are mounts, attached
// storage, immutable directories and pending calls.
func (c *chaos) leftOnHost(ctx context.Context) error {
	node, err := c.api.Node(ctx)
	if err != nil {
		return err
	}
	var left []string
	for _, p := range node.Pending {
		left = append(left, "pending: "+p.Subject+": "+p.Message)
	}
	drained, err := c.api.Drain(ctx, 100*time.Millisecond)
	_, undo := c.api.Undrain(ctx)
	if err := errors.Join(err, undo); err != nil {
		return err
	}
	for _, o := range drained.Left {
		left = append(left, "left: "+o.Message)
	}
	for line := range harness.Lines(c.Mounts()) {
		left = append(left, "mounted: "+line)
	}
	attached, err := c.attached()
	left = append(left, attached...)
	return errors.Join(err, c.leftBelow(left))
}

// attached returns the volumes of the plugin "rec" whose storage is still connected to this host.
func (c *chaos) attached() (left []string, err error) {
	calls, err := csitest.ReadJournal(c.Config.JournalPath())
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, one := range calls.Only(csitest.ControllerPublish) {
		if seen[one.Volume] {
			continue
		}
		seen[one.Volume] = true
		is, err := csitest.Attached(c.Config, one.Volume)
		if err != nil {
			return nil, err
		}
		if is {
			left = append(left, "attached: "+one.Volume)
		}
	}
	return left, nil
}

// leftBelow returns an error that names the given leftovers, and also all leftover directories,
// loop devices and immutable directories below the run's directory.
func (c *chaos) leftBelow(left []string) error {
	names, err := filepath.Glob(filepath.Join(c.Dir, "d", "csi", "*", "*", "*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		left = append(left, "directory: "+name)
	}
	out, err := exec.Command("losetup", "-l", "-n", "-O", "NAME,BACK-FILE").Output()
	if err != nil {
		return err
	}
	for line := range harness.Lines(string(out)) {
		if strings.Contains(line, " "+c.Dir+"/") {
			left = append(left, "loop device: "+line)
		}
	}
	points, err := os.ReadDir(filepath.Join(c.Dir, "at"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, p := range points {
		dir := filepath.Join(c.Dir, "at", p.Name())
		if flags, err := harness.DirFlags(dir, nil); err == nil && flags&harness.Immutable != 0 {
			left = append(left, "immutable: "+dir)
		}
	}
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	return errors.New(strings.Join(left, "\n"))
}
