package plugintest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

func checkUnknownPublish(ctx context.Context, r *run) finding {
	if err := makeDir(ctx, r, r.rec.Staging); err != nil {
		return broken("%v", err)
	}

	err := r.publishAs(ctx, unknownID(r), second, false)
	path := r.rec.Targets[second]
	mounted := !isUnmounted(ctx, r, path)
	undone := r.s.takeOff(ctx, path, func() error { return r.s.nodeUnpublish(ctx, r.id, unknownID(r), path) })
	delete(r.touched, second)
	r.dirty = false

	switch {
	case undone != nil:
		r.touched[second], r.dirty = true, true
		return broken("%v", undone)
	case err == nil || mounted:
		return copes("%s, but there is no such volume; the agent publishes only registered volumes", answer(err))
	case code(err) != volume.CodeNotFound:
		return copes("%s instead of NotFound; the agent retries such a claim until the claim times out", words(err))
	}

	return fine("refused")
}

func checkUnknownUnpublish(ctx context.Context, r *run) finding {
	err := r.s.nodeUnpublish(ctx, r.id, unknownID(r), r.rec.Targets[first])
	switch code(err) {
	case volume.CodeOK, volume.CodeNotFound:
		return fine("%s", code(err))
	}

	if unanswered(err) {
		return broken("%s", words(err))
	}

	return copes("%s; the agent trusts the mount table", words(err))
}

func checkLate(ctx context.Context, r *run) finding {
	published := r.publish(ctx, second, false)
	undone := r.nodeUnpublish(ctx, second)
	if published != nil {
		return skipped("the publish failed: %s", words(published))
	}

	r.dirty = r.dirty || undone != nil
	return watchForLateMount(ctx, r, r.rec.Targets[second], fine("no mount appeared within %s", r.s.grace()))
}

// watchForLateMount watches for a mount that appears at path late, after the call that makes it has
// been undone. If a mount appears, watchForLateMount unmounts it.
func watchForLateMount(ctx context.Context, r *run, path string, none finding) finding {
	sight, took := appear(ctx, r, path, r.s.grace())
	if isUnmounted(ctx, r, path) {
		return none
	}
	r.dirty, r.late = true, true
	if why := wantBare(ctx, r); why != "" {
		return broken("a mount appeared %s after the call was undone (%s), and stays: %s", took.Round(time.Millisecond), seen(sight), why)
	}
	return copes("a mount appeared %s after the call was undone; the agent watches for late mounts, and undoes them", took.Round(time.Millisecond))
}

// short is the time limit of a call that the test deliberately abandons.
const short = 5 * time.Millisecond

func checkGivenUpStage(ctx context.Context, r *run) finding {
	if err := makeDir(ctx, r, r.rec.Staging); err != nil {
		return broken("%v", err)
	}

	given, cancel := context.WithTimeout(ctx, short)
	err := r.nodeStage(given)
	cancel()
	r.dirty = true
	return repeatGivenUpCall(ctx, r, err, r.rec.Staging, func() error { return r.nodeUnstage(ctx) })
}

func checkGivenUpPublish(ctx context.Context, r *run) finding {
	given, cancel := context.WithTimeout(ctx, short)
	err := r.publish(given, second, false)
	cancel()
	return repeatGivenUpCall(ctx, r, err, r.rec.Targets[second], func() error { return r.nodeUnpublish(ctx, second) })
}

// repeatGivenUpCall cleans up after a stage or publish call that the test abandoned. It repeats the
// undo call until that call succeeds or the time is up. Then it watches the path for a late mount.
func repeatGivenUpCall(ctx context.Context, r *run, err error, path string, undo func() error) finding {
	said := fmt.Sprintf("the call was given up after %s, and undone", short)
	if err == nil {
		said = fmt.Sprintf("the plugin answers within %s, so no call was given up", short)
	}
	var undone error
	for end := time.Now().Add(r.s.grace()); ; pause(ctx, 10*appearEvery) {
		if undone = undo(); undone == nil || time.Now().After(end) || ctx.Err() != nil {
			break
		}
	}

	f := watchForLateMount(ctx, r, path, fine("%s", said))
	if f.verdict != OK {
		return f
	}
	if why := wantBare(ctx, r); why != "" {
		return broken("%s", why)
	}
	if undone != nil {
		return copes("%s; the undo call fails, although nothing is mounted: %s", said, words(undone))
	}

	return f
}

// atOnce is the number of calls that a check makes in parallel.
const atOnce = 4

func checkAtOnce(ctx context.Context, r *run) finding {
	odd := ""
	if r.info.Caps.Stage {
		if err := makeDir(ctx, r, r.rec.Staging); err != nil {
			return broken("%v", err)
		}
		r.dirty = true
		odd = callInParallel(r, r.rec.Staging, func() error { return r.nodeStage(ctx) })
		if why := wantStaged(ctx, r); why != "" {
			return broken("after simultaneous stage calls: %s", why)
		}
	}

	r.touched[second] = true
	odd += callInParallel(r, r.rec.Targets[second], parallelPublisher(ctx, r, second))
	r.dirty = true
	if why := wantBare(ctx, r); why != "" {
		return broken("after simultaneous calls: %s", why)
	}
	if odd != "" {
		return copes("%s the agent makes one call at a time for each volume", odd)
	}

	return fine("%d simultaneous stage calls and %d simultaneous publish calls made one mount each", atOnce, atOnce)
}

// parallelPublisher returns a function that publishes the volume at a target. Several goroutines
// may call this function at the same time.
func parallelPublisher(ctx context.Context, r *run, n int) func() error {
	return func() error {
		one := *r
		one.touched = map[int]bool{}
		return one.publish(ctx, n, false)
	}
}

// callInParallel makes the same call several times in parallel, and describes unexpected results.
func callInParallel(r *run, path string, do func() error) string {
	errs := make([]error, atOnce)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = do() })
	}

	wg.Wait()
	odd := ""

	for _, err := range errs {
		if c := code(err); c != volume.CodeOK && c != volume.CodeAborted {
			odd = fmt.Sprintf("a simultaneous call fails: %s;", words(err))
		}
	}

	if n, err := r.s.Host.Count(path); err != nil || n > 1 {
		odd += fmt.Sprintf(" the path has %d stacked mounts;", n)
	}

	return odd
}

func checkLongPath(ctx context.Context, r *run) finding {
	return publishElsewhere(ctx, r, long, "use a short data dir, and short ids for volumes and allocs")
}

func checkHiddenPath(ctx context.Context, r *run) finding {
	return publishElsewhere(ctx, r, hidden, "do not put the data dir below a directory with a leading dot; the agent itself makes no such directory")
}

// publishElsewhere checks that the plugin can publish the volume at a target with an unusual path.
func publishElsewhere(ctx context.Context, r *run, n int, advice string) finding {
	err := r.publish(ctx, n, false)
	if err == nil {
		err = r.good(ctx, n)
	}
	r.dirty = true
	if err != nil {
		return copes("%s; %s", words(err), advice)
	}

	return fine("%d bytes, accepted", len(r.rec.Targets[n]))
}

func checkKillStage(ctx context.Context, r *run) finding {
	if err := makeDir(ctx, r, r.rec.Staging); err != nil {
		return broken("%v", err)
	}

	r.dirty = true
	called := make(chan error, 1)
	go func() { called <- r.nodeStage(ctx) }()
	pause(ctx, time.Millisecond)
	took, err := killPlugin(ctx, r)
	answered := <-called

	switch {
	case errors.Is(err, errSpared):
		return skipped("%v", err)
	case err != nil:
		return broken("%v", err)
	}

	// If the mount ended with the plugin's process, the test must unstage before it stages again.
	// wantPublished does this, as the agent would.
	if s := r.s.Host.Look(ctx, r.rec.Staging).Seen; s == volume.SeenNothing || s == volume.SeenMount {
		if err := r.stage(ctx); err != nil {
			return broken("the plugin was ready again after %s, but then failed: %s", took.Round(time.Millisecond), words(err))
		}
	}

	if why := wantPublished(ctx, r); why != "" {
		return broken("the plugin was ready again after %s, but then failed: %s", took.Round(time.Millisecond), why)
	}

	return fine("the plugin was ready again after %s; the interrupted stage ended with %s", took.Round(time.Millisecond), code(answered))
}

func checkKillMounted(ctx context.Context, r *run) finding {
	if r.data == nil && r.rec.Capability.Access.Writable() {
		if f := writeTestFile(ctx, r); f.verdict != OK {
			return f
		}
	}

	took, err := killPlugin(ctx, r)
	switch {
	case errors.Is(err, errSpared):
		return skipped("%v", err)
	case err != nil:
		return broken("%v", err)
	}

	lost := checkIntact(ctx, r)
	if lost == nil {
		return fine("the mount survives; the plugin was ready again after %s", took.Round(time.Millisecond))
	}

	r.dirty = true
	if why := wantPublished(ctx, r); why != "" {
		return broken("the mount ends with the process (%v), and cannot be made again: %s", lost, why)
	}
	if err := checkIntact(ctx, r); err != nil {
		return broken("the mount ends with the process, and the new mount does not show the same data: %v", err)
	}

	return copes("the mount ends with the process; the agent makes it again (here %s after the kill), but programs lose their open files", took.Round(time.Millisecond))
}

// checkIntact returns nil if the volume is mounted at the first target and contains the test's file
// unchanged.
func checkIntact(ctx context.Context, r *run) error {
	err := r.good(ctx, first)
	if err == nil && r.data != nil {
		err = checkContent(ctx, r, first)
	}
	return err
}

// errSpared means that killPlugin did not kill the process.
var errSpared = errors.New("not killed")

// killPlugin kills the plugin's process and waits until a new process is ready. It returns the
// duration of the wait.
func killPlugin(ctx context.Context, r *run) (time.Duration, error) {
	before, began := r.s.Plugins.View(r.id).Incarnation, time.Now()
	if err := r.s.Plugins.Kill(r.id, r.rec.Name()); err != nil {
		return 0, fmt.Errorf("%w: %v", errSpared, err) //nolint:errorlint // callers need only errSpared
	}

	limit, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()

	for r.s.Plugins.View(r.id).Incarnation == before && limit.Err() == nil {
		pause(limit, appearEvery)
	}

	if err := r.s.Plugins.Await(limit, r.id); err != nil {
		return 0, fmt.Errorf("the plugin was not ready again within %s: %w", readyWithin, err)
	}

	return time.Since(began), nil
}
