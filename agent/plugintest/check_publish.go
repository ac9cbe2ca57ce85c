package plugintest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

func checkPublish(ctx context.Context, r *run) finding {
	if err := r.publish(ctx, first, false); err != nil {
		return broken("%s", words(err))
	}

	r.answered = true
	if _, err := lstat(ctx, r.rec.Targets[first]); errors.Is(err, os.ErrNotExist) {
		return copes("the plugin answers OK before the target exists; the agent waits %s for the mount", appearWithin)
	}

	return fine("the plugin answers OK, and the target exists")
}

// prompt is the time within which the mount must appear after the plugin's answer. A mount that
// appears later counts as late.
const prompt = 50 * time.Millisecond

func checkMounted(ctx context.Context, r *run) finding {
	if !r.answered {
		return skipped("the publish failed")
	}

	sight, took := appear(ctx, r, r.rec.Targets[first], appearWithin)
	if sight.Seen != volume.SeenMount {
		r.failures++
		r.dirty = true
	}

	switch {
	case sight.Seen == volume.SeenNothing:
		return broken("nothing is mounted at the target after %s; does the plugin run in another mount namespace?%s", took.Round(time.Millisecond), describeMode(ctx, r, first))
	case sight.Seen != volume.SeenMount:
		return broken("the mount does not open: %s", seen(sight))
	}

	r.up[first] = true
	r.learn(sight)
	if took > prompt {
		r.late = true
		return copes("the mount appeared %s after the answer; the agent waits up to %s for a mount", took.Round(time.Millisecond), appearWithin)
	}

	return fine("%s, %s", r.sum.Mounts, sight.Identity.FSType)
}

// describeMode describes the mode of a target that exists but is not a mount point.
func describeMode(ctx context.Context, r *run, n int) string {
	info, err := lstat(ctx, r.rec.Targets[n])
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" The target exists and has mode %04o", info.Mode().Perm())
}

func checkSource(ctx context.Context, r *run) finding {
	if !r.up[first] {
		return skipped("nothing is mounted")
	}

	own, err := r.s.Host.Own(r.s.Host.Look(ctx, r.rec.Targets[first]).Identity)
	switch {
	case err != nil:
		return broken("%v", err)
	case own:
		r.dirty = true
		return broken("the empty staging directory is mounted, because NodeStageVolume answered OK and did nothing; data would go to the host's disk")
	}

	return fine("the mount does not show a directory of the agent")
}

func checkPublishAgain(ctx context.Context, r *run) finding {
	path := r.rec.Targets[first]
	before, err := r.s.Host.Count(path)
	if err != nil {
		return broken("%v", err)
	}
	if err := r.publish(ctx, first, false); err != nil {
		return copes("%s; the agent unpublishes before it retries", words(err))
	}

	return checkStacked(r, path, before)
}

func writeTestFile(ctx context.Context, r *run) finding {
	dir, data := r.rec.Targets[first], []byte("volagent "+r.rec.ID+" "+time.Now().UTC().Format(time.RFC3339Nano)+"\n")
	r.wrote, r.data = true, data
	err := write(ctx, dir, r.rec.File, data)
	if err == nil {
		err = checkContent(ctx, r, first)
	}
	if err != nil {
		r.wrote, r.data = remove(ctx, dir, r.rec.File) != nil, nil
		return broken("%v", err)
	}

	return fine("%d bytes", len(data))
}

// checkContent returns nil if the test's file is readable at a target and contains the data that
// the test wrote.
func checkContent(ctx context.Context, r *run, n int) error {
	got, err := read(ctx, r.rec.Targets[n], r.rec.File)
	switch {
	case err != nil:
		return err
	case !bytes.Equal(got, r.data):
		return fmt.Errorf("the file has %d bytes that differ from the written bytes", len(got))
	}
	return nil
}

func checkSecond(ctx context.Context, r *run) finding {
	err := r.publish(ctx, second, false)
	if err == nil {
		err = r.good(ctx, second)
	}
	if err == nil {
		err = checkContent(ctx, r, second)
	}
	if err != nil {
		r.dirty = true
		return broken("the second target fails: %s", words(err))
	}
	if err := r.s.takeOff(ctx, r.rec.Targets[second], func() error { return r.nodeUnpublish(ctx, second) }); err != nil {
		r.dirty = true
		return broken("cannot unpublish the second target: %v", err)
	}
	if err := errors.Join(r.good(ctx, first), checkContent(ctx, r, first)); err != nil {
		r.dirty = true
		return broken("unpublishing the second target breaks the first: %v", err)
	}

	return fine("both targets show the same data")
}

func checkStats(ctx context.Context, r *run) finding {
	req := call.StatsRequest{ExternalID: r.vol.ExternalID, Path: r.rec.Targets[first]}
	if r.info.Caps.Stage {
		req.StagingPath = r.rec.Staging
	}

	var stats call.Stats
	err := r.call("NodeGetVolumeStats", func(p Plugin) (err error) { stats, err = call.Do(ctx, p, req); return err })

	switch {
	case err != nil:
		return copes("%s; only volctl volume stats fails", words(err))
	case stats.Bytes == nil:
		return copes("the plugin reports no bytes; volctl volume stats has nothing to show")
	}

	return fine("%d of %d bytes used", stats.Bytes.Used, stats.Bytes.Total)
}

func checkUnpublish(ctx context.Context, r *run) finding {
	err := r.nodeUnpublish(ctx, first)
	path := r.rec.Targets[first]
	if !isUnmounted(ctx, r, path) {
		r.dirty = true
		return broken("%s, but the target is still mounted", answer(err))
	}

	delete(r.up, first)
	_, gone := lstat(ctx, path)
	if rerr := r.s.Host.Remove(path); rerr != nil {
		return broken("leftovers remain: %v", rerr)
	}

	switch {
	case unanswered(err):
		r.dirty = true
		return broken("%s", words(err))
	case err != nil:
		return copes("%s, although nothing is mounted any more; the agent trusts the mount table", words(err))
	case !errors.Is(gone, os.ErrNotExist):
		return copes("the target stays; the agent removes it")
	}

	return fine("the mount and the target are gone")
}

func checkUnpublishAgain(ctx context.Context, r *run) finding {
	return unpublishUnmounted(ctx, r, first)
}

func checkUnpublishNever(ctx context.Context, r *run) finding {
	return unpublishUnmounted(ctx, r, long)
}

// unpublishUnmounted checks that the plugin accepts an unpublish of a target that is not mounted.
func unpublishUnmounted(ctx context.Context, r *run, n int) finding {
	err := r.nodeUnpublish(ctx, n)
	switch {
	case !isUnmounted(ctx, r, r.rec.Targets[n]):
		r.touched[n], r.dirty = true, true
		return broken("%s, but the target has a mount", answer(err))
	case unanswered(err):
		return broken("%s", words(err))
	case err != nil:
		return copes("%s; nothing is mounted, so the agent treats this as success", words(err))
	}

	return fine("the call succeeds")
}

// checkKept publishes the volume and checks that the test's file has not changed.
func checkKept(ctx context.Context, r *run) finding {
	if why := wantPublished(ctx, r); why != "" {
		return broken("%s", why)
	}
	if err := checkContent(ctx, r, first); err != nil {
		return broken("%v", err)
	}
	return fine("the file is unchanged")
}

func checkReadOnly(ctx context.Context, r *run) finding {
	if err := r.publish(ctx, second, true); err != nil {
		return copes("%s; read-only claims fail with this error", words(err))
	}

	r.dirty = true // the next check must not use this read-only mount
	if err := r.good(ctx, second); err != nil {
		return broken("%v", err)
	}

	path := r.rec.Targets[second]
	name := r.rec.File + "-ro"
	if isReadOnly(ctx, r, path, name) {
		return fine("the mount is read-only")
	}
	if err := r.s.Host.MakeReadOnly(ctx, path); err != nil || !isReadOnly(ctx, r, path, name) {
		return broken("the mount can be written to, and the agent cannot remount it read-only: %v", err)
	}

	return copes("the mount can be written to; the agent remounts it read-only")
}

// isReadOnly tries to write a file in dir, and reports whether dir is read-only. If the write
// succeeds, it removes the file.
func isReadOnly(ctx context.Context, r *run, dir, name string) bool {
	if err := write(ctx, dir, name, []byte("x")); err != nil {
		return errors.Is(err, syscall.EROFS) || r.s.Host.Look(ctx, dir).ReadOnly
	}
	_ = remove(ctx, dir, name) // a failure is harmless, because the file is small
	return false
}
