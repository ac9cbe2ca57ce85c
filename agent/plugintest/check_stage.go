package plugintest

import (
	"context"
	"os/exec"

	"github.com/volagent/volagent/volmgr/volume"
)

func checkStage(ctx context.Context, r *run) finding {
	if err := r.stage(ctx); err != nil {
		r.failures++
		return broken("%s", words(err))
	}

	switch sight := r.s.Host.Look(ctx, r.rec.Staging); sight.Seen {
	case volume.SeenNothing:
		return fine("the stage makes no mount")
	case volume.SeenMount:
		r.sum.StageMounts = true
		r.learn(sight)
		return fine("the stage mounts %s", sight.Identity.FSType)
	default:
		r.failures++
		r.dirty = true
		return broken("the plugin answers OK, but the mount does not open: %s", seen(sight))
	}
}

func checkStageAgain(ctx context.Context, r *run) finding {
	before, err := r.s.Host.Count(r.rec.Staging)
	if err != nil {
		return broken("%v", err)
	}
	if err := r.nodeStage(ctx); err != nil {
		r.dirty = true
		return copes("%s; the agent unstages before it retries", words(err))
	}

	return checkStacked(r, r.rec.Staging, before)
}

// checkStacked checks whether a repeated call has added a second mount.
func checkStacked(r *run, path string, before int) finding {
	now, err := r.s.Host.Count(path)
	switch {
	case err != nil:
		return broken("%v", err)
	case now > before:
		r.dirty = true
		return copes("the repeated call adds a mount: the path now has %d mounts; the agent unmounts all of them", now)
	}
	return fine("the repeated call changes nothing")
}

func checkUnstagePublished(ctx context.Context, r *run) finding {
	err := r.nodeUnstage(ctx)
	r.dirty = true

	switch lost := r.good(ctx, first); {
	case lost != nil:
		return copes("unstaging removes the published mount (%v); the agent unstages only volumes without published mounts", lost)
	case err != nil:
		return fine("refused: %s", words(err))
	}

	return fine("the published mount stays")
}

func checkUnstage(ctx context.Context, r *run) finding {
	err := r.nodeUnstage(ctx)
	mounted := !isUnmounted(ctx, r, r.rec.Staging)
	r.dirty = mounted || err != nil

	switch {
	case mounted:
		return broken("%s, but %s is still mounted", answer(err), r.rec.Staging)
	case code(err) == volume.CodeNotFound:
		r.dirty = false
		r.staged = false
		return copes("%s for a staged volume; nothing is mounted, so the agent treats the volume as unstaged", words(err))
	case err != nil:
		return broken("%s, although nothing is mounted any more; the agent would retry forever", words(err))
	}

	r.staged = false
	if err := r.s.Host.Remove(r.rec.Staging); err != nil {
		return broken("leftovers remain: %v", err)
	}

	return fine("unstaged")
}

// answer describes the plugin's answer to a call.
func answer(err error) string {
	if err == nil {
		return "the plugin answers OK"
	}
	return words(err)
}

func checkUnstageAgain(ctx context.Context, r *run) finding {
	err := r.nodeUnstage(ctx)
	switch code(err) {
	case volume.CodeOK:
		return fine("the call succeeds")
	case volume.CodeNotFound:
		return copes("%s; the agent treats this as success", words(err))
	default:
		return broken("%s; after a crash the agent would retry forever", words(err))
	}
}

func checkPublishUnstaged(ctx context.Context, r *run) finding {
	if err := makeDir(ctx, r, r.rec.Staging); err != nil {
		return broken("%v", err)
	}

	err := r.publish(ctx, second, false)
	sight := r.s.Host.Look(ctx, r.rec.Targets[second])
	r.dirty = true

	switch {
	case err != nil && sight.Seen == volume.SeenNothing:
		return fine("refused: %s", words(err))
	case err != nil:
		return copes("%s, but the target has a mount; the agent unpublishes after each failure", words(err))
	case sight.Seen == volume.SeenNothing:
		return copes("the plugin answers OK and mounts nothing; the agent checks the mount after each publish")
	}

	if own, err := r.s.Host.Own(sight.Identity); err != nil || own {
		return copes("the plugin answers OK and mounts the empty staging directory; the agent checks the mount after each publish")
	}

	return fine("the plugin mounts the volume without a stage")
}

func checkArgvPath(ctx context.Context, r *run) finding {
	// The arguments of this process include the staging path. The process ends when its input is
	// closed.
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "read _", r.rec.Staging)
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return skipped("cannot start a process: %v", err)
	}

	failed := r.stage(ctx)
	_ = in.Close() // the process ends when its input is closed
	_ = cmd.Wait() // the exit status does not matter
	if failed != nil {
		return copes("%s; the agent starts no process with a staging path among its arguments", words(failed))
	}

	return fine("accepted")
}
