package plugintest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// call gets a client of the plugin's current process and makes a call with it.
func (r *run) call(step string, do func(Plugin) error) error {
	p, err := r.s.Plugins.Tested(r.id)
	if err != nil {
		return &volume.CallError{Step: step, Code: volume.CodeUnavailable, Message: err.Error(), Retry: volume.RetryBackoff}
	}
	return do(p)
}

// attach calls ControllerPublishVolume for this host if the plugin supports this call and the
// volume is not attached yet.
func (r *run) attach(ctx context.Context) error {
	if !r.info.Caps.Attach || r.attached {
		return nil
	}
	given, err := r.controllerPublish(ctx)
	if err == nil {
		r.attached, r.publishCtx = true, given
	}
	return err
}

func (r *run) controllerPublish(ctx context.Context) (given map[string]string, err error) {
	err = r.call("ControllerPublishVolume", func(p Plugin) (err error) {
		given, err = call.Do(ctx, p, call.ControllerPublishRequest{
			ExternalID: r.vol.ExternalID, NodeID: r.info.NodeID, Capability: r.rec.Capability,
			FSType: r.rec.MountOptions.FSType, MountFlags: r.rec.MountOptions.MountFlags,
			VolumeContext: r.vol.Context, Secrets: r.secrets,
		})
		return err
	})
	return given, err
}

func (r *run) controllerUnpublish(ctx context.Context) error {
	err := r.call("ControllerUnpublishVolume", func(p Plugin) error {
		return call.Run(ctx, p, call.ControllerUnpublishRequest{
			ExternalID: r.vol.ExternalID, NodeID: r.info.NodeID, Secrets: r.secrets})
	})
	if err == nil {
		r.attached, r.publishCtx = false, nil
	}
	return err
}

// stage stages the volume if the plugin supports staging. After a failure it sets dirty, so that
// the test unstages the volume before the next step.
func (r *run) stage(ctx context.Context) error {
	if err := r.attach(ctx); err != nil {
		return err
	}
	if !r.info.Caps.Stage {
		r.staged = true
		return nil
	}
	if err := makeDir(ctx, r, r.rec.Staging); err != nil {
		return err
	}

	err := r.nodeStage(ctx)
	r.staged, r.dirty = err == nil, r.dirty || err != nil
	return err
}

func (r *run) nodeStage(ctx context.Context) error {
	return r.call("NodeStageVolume", func(p Plugin) error {
		return call.Run(ctx, p, call.NodeStageRequest{
			ExternalID: r.vol.ExternalID, StagingPath: r.rec.Staging, Capability: r.rec.Capability,
			FSType: r.rec.MountOptions.FSType, MountFlags: r.rec.MountOptions.MountFlags,
			PublishContext: r.publishCtx, VolumeContext: r.vol.Context, Secrets: r.secrets,
		})
	})
}

// publish calls NodePublishVolume for a target. It creates the parent directory of the target, but
// not the target itself.
func (r *run) publish(ctx context.Context, n int, readOnly bool) error {
	return r.publishAs(ctx, r.vol.ExternalID, n, readOnly)
}

func (r *run) publishAs(ctx context.Context, externalID string, n int, readOnly bool) error {
	if err := makeDir(ctx, r, filepath.Dir(r.rec.Targets[n])); err != nil {
		return err
	}

	req := call.NodePublishRequest{
		ExternalID: externalID, TargetPath: r.rec.Targets[n], Capability: r.rec.Capability,
		FSType: r.rec.MountOptions.FSType, MountFlags: r.rec.MountOptions.MountFlags, ReadOnly: readOnly,
		PublishContext: r.publishCtx, VolumeContext: r.vol.Context, Secrets: r.secrets,
	}
	if r.info.Caps.Stage {
		req.StagingPath = r.rec.Staging
	}

	r.touched[n] = true
	err := r.call("NodePublishVolume", func(p Plugin) error { return call.Run(ctx, p, req) })
	r.dirty = r.dirty || err != nil
	return err
}

// nodeUnpublish calls NodeUnpublishVolume for a target. It does not check the result on the host.
func (s *Service) nodeUnpublish(ctx context.Context, id, externalID, target string) error {
	p, err := s.Plugins.Tested(id)
	if err != nil {
		return err
	}
	return call.Run(ctx, p, call.NodeUnpublishRequest{ExternalID: externalID, TargetPath: target})
}

// nodeUnstage calls NodeUnstageVolume for a staging path. It does not check the result on the host.
func (s *Service) nodeUnstage(ctx context.Context, id, externalID, staging string) error {
	p, err := s.Plugins.Tested(id)
	if err != nil {
		return err
	}
	return call.Run(ctx, p, call.NodeUnstageRequest{ExternalID: externalID, StagingPath: staging})
}

func (r *run) nodeUnpublish(ctx context.Context, n int) error {
	return r.s.nodeUnpublish(ctx, r.id, r.vol.ExternalID, r.rec.Targets[n])
}

func (r *run) nodeUnstage(ctx context.Context) error {
	return r.s.nodeUnstage(ctx, r.id, r.vol.ExternalID, r.rec.Staging)
}

// appearWithin is how long the test waits for a mount after the plugin has answered. appearEvery is
// the interval between two looks at the mount point.
const (
	appearWithin = 2 * time.Second
	appearEvery  = 20 * time.Millisecond
)

// appear waits until a path has a mount, but at most for the given time. It returns the state of
// the path and the duration of the wait.
func appear(ctx context.Context, r *run, path string, within time.Duration) (volume.Sight, time.Duration) {
	for began := time.Now(); ; pause(ctx, appearEvery) {
		sight := r.s.Host.Look(ctx, path)
		if took := time.Since(began); sight.Seen != volume.SeenNothing || took > within || ctx.Err() != nil {
			return sight, took
		}
	}
}

// isUnmounted reports whether a path has no mount.
func isUnmounted(ctx context.Context, r *run, path string) bool {
	return r.s.Host.Look(ctx, path).Seen == volume.SeenNothing
}

// good returns nil if the target has a mount that works. It returns an error if one of the agent's
// own directories is mounted there instead of the volume.
func (r *run) good(ctx context.Context, n int) error {
	sight, _ := appear(ctx, r, r.rec.Targets[n], appearWithin)
	if sight.Seen != volume.SeenMount {
		return errors.New(seen(sight))
	}

	r.learn(sight)
	own, err := r.s.Host.Own(sight.Identity)
	if err == nil && own {
		err = errors.New("an empty directory of the agent is mounted instead of the volume")
	}

	return err
}

// learn stores the file system type of a mount in the summary.
func (r *run) learn(s volume.Sight) {
	if s.Seen == volume.SeenMount && r.sum.FSType == "" {
		r.sum.FSType, r.sum.Mounts = s.Identity.FSType, "kernel"
		if s.Identity.FUSE() {
			r.sum.Mounts = "fuse"
		}
	}
}

// seen describes the state of a path that has no working mount.
func seen(s volume.Sight) string {
	if s.Seen == volume.SeenNothing {
		return "nothing is mounted there"
	}
	return string(s.Seen) + ": " + s.Detail
}

// wantBare unmounts the volume from this host. If that fails, wantBare returns the reason.
func wantBare(ctx context.Context, r *run) string {
	if err := r.down(ctx); err != nil {
		return err.Error()
	}
	return ""
}

// wantAttached unmounts the volume from this host and attaches it, or returns the reason why it
// cannot.
func wantAttached(ctx context.Context, r *run) string {
	why := wantBare(ctx, r)
	if why == "" && r.attach(ctx) != nil {
		why = "the volume is not attached"
	}
	return why
}

// tries is the number of consecutive failures after which the test no longer tries to mount the
// volume. On storage that hangs, each attempt takes a long time.
const tries = 2

// failed counts a failure to mount the volume and returns the reason for it.
func (r *run) failed(format string, args ...any) string {
	r.dirty = true
	why := fmt.Sprintf(format, args...)
	if r.failures++; r.failures >= tries {
		r.hopeless = why
	}
	return why
}

// wantStaged stages the volume if it is not staged yet. If that fails, wantStaged returns the
// reason.
func wantStaged(ctx context.Context, r *run) string {
	if r.hopeless != "" {
		return r.hopeless
	}

	if r.dirty {
		if why := wantBare(ctx, r); why != "" {
			return why
		}
	}

	if r.staged {
		return ""
	}
	if err := r.stage(ctx); err != nil {
		return r.failed("cannot stage the volume: %s", words(err))
	}
	if sight := r.s.Host.Look(ctx, r.rec.Staging); sight.Seen != volume.SeenNothing && sight.Seen != volume.SeenMount {
		return r.failed("cannot stage the volume: %s", seen(sight))
	}

	return ""
}

// wantPublished publishes the volume at the first target and at no other, or returns the reason why
// it cannot.
func wantPublished(ctx context.Context, r *run) string {
	if r.hopeless != "" {
		return r.hopeless
	}

	if r.dirty || len(r.up) > 1 || (len(r.up) == 1 && !r.up[first]) {
		if why := wantBare(ctx, r); why != "" {
			return why
		}
	}

	if r.up[first] {
		return ""
	}
	if why := wantStaged(ctx, r); why != "" {
		return why
	}

	err := r.publish(ctx, first, false)
	if err == nil {
		err = r.good(ctx, first)
	}
	if err != nil {
		return r.failed("cannot publish the volume: %s", words(err))
	}

	r.failures = 0
	r.up[first] = true
	return ""
}

// wantFree stages the volume and unpublishes all targets. If that fails, wantFree returns the
// reason.
func wantFree(ctx context.Context, r *run) string {
	if r.dirty || len(r.up) > 0 {
		if why := wantBare(ctx, r); why != "" {
			return why
		}
	}
	return wantStaged(ctx, r)
}

// down unpublishes the volume from all targets and unstages it. It does so for every path that may
// have a mount.
func (r *run) down(ctx context.Context) error {
	var errs []error
	for n, path := range r.rec.Targets {
		if r.touched[n] {
			errs = append(errs, r.s.takeOff(ctx, path, func() error { return r.nodeUnpublish(ctx, n) }))
		}
	}

	if r.info.Caps.Stage && (r.staged || r.dirty) {
		errs = append(errs, r.s.takeOff(ctx, r.rec.Staging, func() error { return r.nodeUnstage(ctx) }))
	}

	if err := errors.Join(errs...); err != nil {
		r.dirty = true
		return err
	}

	clear(r.up)
	clear(r.touched)
	r.staged, r.dirty = false, false
	return nil
}
