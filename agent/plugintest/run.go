package plugintest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// Ask contains the user's options for a test.
type Ask struct {
	// ExternalID and Context describe an existing volume to which the test may write. If ExternalID
	// is empty, the test creates a volume, and deletes it when the test ends.
	ExternalID string
	Context    map[string]string
	Secrets    map[string]call.SecretRef
	Parameters map[string]string
	Capacity   int64 // in bytes; 0 means that the plugin chooses the size
	// Access is the access mode of the test. If it is empty, the test uses single-node-multi-writer
	// if the plugin supports it, and otherwise single-node-writer.
	Access       call.AccessMode
	MountOptions call.MountOptions
	// Kill allows the test to kill the plugin's process.
	Kill bool
	// Fence allows the test to detach the volume while this host writes to it. The test refuses that for
	// an existing volume.
	Fence bool
	// Forget lets the test discard leftovers of an earlier test that it cannot undo.
	Forget  bool
	Timeout time.Duration // the limit for the complete test; 0 means DefaultTimeout
}

// These are the targets, as indexes of plugin.Scratch.Targets.
const (
	first = iota
	second
	long   // a target with the longest path that a plugin must accept
	hidden // a target in a directory whose name begins with a dot
	targets
)

// run is a test in progress.
type run struct {
	s       *Service
	id      string
	ask     Ask
	info    plugin.Info
	rec     plugin.Scratch // the stored record of the possible leftovers
	secrets call.Secrets
	sum     Summary

	vol        plugin.ScratchVolume // the volume that the test stages and publishes
	capacity   int64
	attached   bool
	publishCtx map[string]string
	staged     bool
	up         map[int]bool // the targets that have a working mount
	touched    map[int]bool // the targets at which the test has tried to publish
	dirty      bool         // whether unexpected mounts may exist on the host
	data       []byte       // the content of the test's file in the volume; nil if unknown
	wrote      bool         // whether the test's file may exist in the volume
	late       bool         // whether a mount has appeared late during the test
	answered   bool         // whether the first publish succeeded
	refused    error        // why CreateVolume failed, if the user must change the options
	gone       bool         // whether the plugin failed to become ready again
	failures   int          // the number of consecutive failures to stage or publish
	hopeless   string       // why the test no longer tries to mount the volume, or ""
}

// Run tests a plugin. It calls each with the result of every check as soon as the check has ended.
// Before it returns, it undoes the test, even if ctx has ended. It stores and reports the leftovers
// that it cannot undo. If each returns an error, the test ends as if ctx had ended.
func (s *Service) Run(ctx context.Context, id string, ask Ask, each func(Result) error) (Summary, error) {
	r, err := s.begin(ctx, id, ask)
	if err != nil {
		return Summary{}, err
	}
	defer s.leave(id)

	if ask.Timeout <= 0 {
		ask.Timeout = DefaultTimeout
	}

	limit, cancel := context.WithTimeoutCause(ctx, ask.Timeout, errTime)
	defer cancel()

	told := error(nil)
	tell := func(res Result) {
		r.sum.count(res.Verdict)
		if told == nil {
			if told = each(res); told != nil {
				cancel()
			}
		}
	}
	for _, c := range checks {
		if !c.last {
			tell(r.try(limit, c))
		}
	}

	// The last checks undo the test, so they must run even if the caller has gone.
	undo, stop := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer stop()

	r.finish(undo)
	for _, c := range checks {
		if c.last {
			tell(r.try(undo, c))
		}
	}

	sum := r.sum
	s.Events(volume.Event{Type: volume.EventPluginTested, Plugin: id, Message: fmt.Sprintf(
		"%d ok, %d worked around, %d broken, %d skipped", sum.OK, sum.WorkAround, sum.Broken, sum.Skip)})
	switch {
	case told != nil:
		return sum, told
	case ctx.Err() != nil:
		return sum, ctx.Err()
	case r.refused != nil:
		return sum, r.refused
	case errors.Is(context.Cause(limit), errTime):
		return sum, volume.Errorf(volume.ErrTimeout, "timed out: the test of plugin %q did not end within %s; the remaining checks were skipped", id, ask.Timeout).
			WithHint("use a longer --timeout")
	}

	return sum, nil
}

var errTime = errors.New("the time limit of the test was reached")

// undoWithin limits the time for the last checks, which undo the test.
const undoWithin = 2 * time.Minute

// begin returns an error if the test is not possible now. Otherwise it stores a record of the
// volumes and paths that the test will use.
func (s *Service) begin(ctx context.Context, id string, ask Ask) (r *run, err error) {
	if s.Halt != "" {
		return nil, volume.Errorf(volume.ErrRefused, "cannot test plugin %q: %s", id, s.Halt)
	}
	if !s.Plugins.View(id).Known {
		return nil, volume.Errorf(volume.ErrNotFound, "no plugin %q", id).WithHint("volctl plugin list")
	}
	if !s.enter(id) {
		return nil, volume.Errorf(volume.ErrRefused, "a test of plugin %q is already running", id).WithHint("wait until that test has ended")
	}
	defer func() {
		if err != nil {
			s.leave(id)
		}
	}()

	if err := s.Plugins.Await(ctx, id); err != nil {
		return nil, err
	}
	if err := s.clean(ctx, id, ask.Forget); err != nil {
		return nil, err
	}

	r = &run{s: s, id: id, ask: ask, info: s.Plugins.View(id).Info, up: map[int]bool{}, touched: map[int]bool{}}
	if err := r.admit(); err != nil {
		return nil, err
	}
	if r.secrets, err = s.Secrets(volume.Volume{Secrets: ask.Secrets}); err != nil {
		return nil, volume.Errorf(volume.ErrInvalid, "%v", err)
	}

	r.plan()
	if err := r.save(ctx); err != nil {
		return nil, errors.Join(err, s.drop(ctx, id)) // the test has not made any changes yet
	}
	// From now on, a registration of this volume is refused because of the stored record. An
	// earlier registration may have ended just before the record was stored, so the test checks
	// again.
	if err := r.unregistered(); err != nil {
		return nil, errors.Join(err, s.drop(ctx, id))
	}

	return r, nil
}

// admit returns an error if the test is not possible or could harm a volume.
func (r *run) admit() error {
	if !r.info.Caps.CreateDelete && r.ask.ExternalID == "" {
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot create volumes", r.id).
			WithHint("name a volume that the test may write to: --external-id")
	}

	if r.ask.Kill {
		if err := r.s.Plugins.MayKill(r.id); err != nil {
			return err
		}
		if ids := r.s.Records.InUse(r.id); len(ids) > 0 {
			return volume.Errorf(volume.ErrRefused, "cannot kill plugin %q: volume %q uses it", r.id, ids[0]).
				WithHint("test without --kill, or detach the claims: %s", suggest.Command("volctl claim list --plugin %s", r.id))
		}
	}

	return r.unregistered()
}

// unregistered returns an error if the user's volume is registered. An alloc could claim a
// registered volume during the test.
func (r *run) unregistered() error {
	if r.ask.ExternalID == "" {
		return nil
	}
	if id, ok := r.s.Records.Registered(r.info.Driver, r.ask.ExternalID); ok {
		return volume.Errorf(volume.ErrRefused, "cannot test with external id %q: it belongs to the registered volume %q", r.ask.ExternalID, id).
			WithHint("name a volume that is not registered, or deregister this one first: %s", suggest.Command("volctl volume deregister %s", id))
	}
	return nil
}

// plan chooses the names and paths that the test will use.
func (r *run) plan() {
	var b [5]byte
	_, _ = rand.Read(b[:]) // rand.Read never returns an error
	tag := hex.EncodeToString(b[:])
	// The ids of volumes and allocs contain no slash, so no claim can have any of these paths.
	id := "test/" + tag
	at := func(n int) string { return r.s.Paths.TargetPath(r.id, fmt.Sprintf("%s/%d", id, n), id, false) }
	hide := filepath.Join(filepath.Dir(at(hidden)), ".hidden")
	paths := []string{first: at(first), second: at(second), long: lengthen(r, at(long)), hidden: filepath.Join(hide, "v")}
	r.rec = plugin.Scratch{
		ID: tag, Begun: time.Now().UTC(), NodeID: r.info.NodeID,
		Staging: r.s.Paths.StagingPath(r.id, id), Targets: paths, File: ".volagent-test-" + tag,
		Capability: call.Capability{Access: access(r), Attachment: call.FileSystem}, MountOptions: r.ask.MountOptions,
		Parameters: r.ask.Parameters, Topology: r.info.DefaultTopology(), Capacity: r.ask.Capacity, Secrets: r.ask.Secrets,
	}
	r.rec.Dirs = append(r.rec.Dirs, hide)
	for n := range targets {
		r.rec.Dirs = append(r.rec.Dirs, filepath.Dir(at(n)))
	}

	r.rec.Dirs = append(r.rec.Dirs, r.rec.Staging)
	if r.ask.ExternalID != "" {
		r.vol = plugin.ScratchVolume{ExternalID: r.ask.ExternalID, Context: r.ask.Context}
		r.rec.Volumes = []plugin.ScratchVolume{r.vol}
	}

	r.sum = Summary{
		Driver: r.info.Driver, Version: r.info.Version, NodeID: r.info.NodeID,
		Attaches: r.info.Caps.Attach, Stages: r.info.Caps.Stage, Creates: r.info.Caps.CreateDelete,
	}
}

// maxPath is the maximum length of a path, in bytes, that every CSI plugin must accept.
const maxPath = 128

// lengthen extends a path to the longest path that the agent may use, but at least to a length of
// maxPath. The agent uses paths longer than maxPath if the data dir is long.
func lengthen(r *run, path string) string {
	x := strings.Repeat("x", maxPath)
	longest := max(maxPath, len(r.s.Paths.TargetPath(r.id, x, x, false)))
	return path + strings.Repeat("x", max(0, longest-len(path)))
}

func access(r *run) call.AccessMode {
	switch {
	case r.ask.Access != "":
		return r.ask.Access
	case r.info.Caps.NodeMultiWriter:
		return call.SingleNodeMultiWriter
	default:
		return call.SingleNodeWriter
	}
}

// save stores the record of the test.
func (r *run) save(ctx context.Context) error {
	rec := r.rec // a copy, because readers share the stored record
	rec.Volumes = slices.Clone(rec.Volumes)
	if err := r.s.Records.SaveScratch(context.WithoutCancel(ctx), r.id, &rec); err != nil {
		return fmt.Errorf("cannot store the record of the test of plugin %q: %w", r.id, err)
	}
	return nil
}

// try runs one check, or skips it if it cannot run.
func (r *run) try(ctx context.Context, c check) Result {
	began := time.Now()
	f := r.attempt(ctx, c)
	return Result{Check: c.id, Verdict: f.verdict, Said: f.said, Took: time.Since(began)}
}

func (r *run) attempt(ctx context.Context, c check) finding {
	if ctx.Err() != nil {
		return skipped("%s", context.Cause(ctx))
	}
	if why := c.needs(r); why != "" {
		return skipped("%s", why)
	}

	if !c.always {
		if err := r.ready(ctx); err != nil {
			return skipped("%v", err)
		}
	}

	before := r.s.Plugins.View(r.id).Incarnation
	f := c.run(ctx, r)
	if !c.last && f.verdict != OK && over(ctx) {
		r.dirty = true // the result of an interrupted check is meaningless
		return skipped("%s", context.Cause(ctx))
	}

	if f.verdict != OK && !c.kills && !c.last {
		r.notice(ctx, before)
	}

	if c.kills || c.last || r.ready(ctx) != nil || r.s.Plugins.View(r.id).Incarnation == before {
		return f
	}

	r.dirty = true
	return broken("the plugin's process ended during this check; %s", f.said)
}

// run brings the volume into the state that the check wants, and does the check.
func (c check) run(ctx context.Context, r *run) finding {
	if c.want != nil {
		if why := c.want(ctx, r); why != "" {
			return skipped("%s", why)
		}
	}
	return c.do(ctx, r)
}

// moment is how long before its deadline a test counts as over. The plugin knows the deadline of
// each call, and may stop slightly earlier than the test.
const moment = 100 * time.Millisecond

// over reports whether the time limit of the test has been reached.
func over(ctx context.Context) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < moment {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// noticeWithin is the time limit of notice.
const noticeWithin = 5 * time.Second

// notice runs after a failed check, so that a plugin process that has ended does not make the next
// check fail. The call fails at once when the process ends, but the agent updates the plugin's
// state later. Therefore, notice waits until the state has changed or the plugin answers a Probe.
func (r *run) notice(ctx context.Context, before uint64) {
	ctx, cancel := context.WithTimeout(ctx, noticeWithin)
	defer cancel()

	for ctx.Err() == nil {
		if v := r.s.Plugins.View(r.id); !v.Ready || v.Incarnation != before {
			return
		}
		if r.call("Probe", func(p Plugin) error { _, err := p.Probe(ctx); return err }) == nil {
			return
		}
		pause(ctx, appearEvery)
	}
}

// readyWithin limits how long the test waits for a plugin whose process has ended.
const readyWithin = time.Minute

// ready waits until the plugin is ready. It does not wait if an earlier wait failed.
func (r *run) ready(ctx context.Context) error {
	within := readyWithin
	if r.gone {
		within = 0
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := r.s.Plugins.Await(ctx, r.id)
	r.gone = err != nil
	return err
}

// finish unmounts the volume from the host. The last checks then disconnect and delete the volume,
// and report leftovers.
func (r *run) finish(ctx context.Context) {
	if r.vol.ExternalID == "" || r.ready(ctx) != nil {
		return
	}

	if r.vol.Name == "" && r.wrote && wantPublished(ctx, r) == "" {
		r.wrote = remove(ctx, r.rec.Targets[first], r.rec.File) != nil
	}

	_ = wantBare(ctx, r)
	if r.late {
		pause(ctx, r.s.grace())
	}

	if r.anywhere(ctx) {
		_ = wantBare(ctx, r)
	}
}

// anywhere reports whether any path of the test still has a mount. It marks these paths, so that
// down unmounts them.
func (r *run) anywhere(ctx context.Context) (found bool) {
	for n, path := range r.rec.Targets {
		if !isUnmounted(ctx, r, path) {
			r.touched[n], r.dirty, found = true, true, true
		}
	}
	if !isUnmounted(ctx, r, r.rec.Staging) {
		r.dirty, found = true, true
	}
	return found
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
