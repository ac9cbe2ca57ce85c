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

	"github.com/volagent/volagent/volmgr/volume"
)

// Ask is what a test is to do.
type Ask struct {
	// ExternalID, with its Context, is a volume of the user's that may be written
	// to; empty: one is created, and deleted at the end.
	ExternalID string
	Context    map[string]string
	Secrets    map[string]volume.SecretRef
	Parameters map[string]string
	Capacity   int64 // bytes; 0 leaves it to the plugin
	// Access is the access mode; empty: single-node-multi-writer where the plugin
	// has it, else single-node-writer.
	Access       volume.AccessMode
	MountOptions volume.MountOptions
	// Kill lets the plugin's process be killed.
	Kill bool
	// Forget gives up what an earlier test left and nobody can undo.
	Forget  bool
	Timeout time.Duration // of the whole test; 0 is DefaultTimeout
}

// Names of the targets.
const (
	first = iota
	second
	long   // as long as a plugin must accept
	hidden // in a directory whose name begins with a dot
	targets
)

// run is one test in hand.
type run struct {
	s       *Service
	id      string
	ask     Ask
	info    volume.PluginInfo
	rec     volume.Scratch // as it is stored
	secrets volume.Secrets
	sum     Summary

	vol        volume.ScratchVolume // the one that is staged and published
	capacity   int64
	attached   bool
	publishCtx map[string]string
	staged     bool
	up         map[int]bool // targets that are published, as they should be
	touched    map[int]bool // targets that a publish was tried at
	dirty      bool         // something may be where it should not
	data       []byte       // what the volume's file holds; nil: nothing that is known
	wrote      bool         // the file may be there
	late       bool         // mounts were seen to come late
	answered   bool         // the first publish was
	refused    error        // why no volume could be made, if the user must change something
	gone       bool         // the plugin did not come back
	failures   int          // to bring the volume up, in a row
	hopeless   string       // why that is not tried any more
}

// Run tests a plugin, and tells each check as it ends. All that the test made is
// undone when it returns, also when ctx ended it; what could not be is on record,
// and told. An error of each ends the test as the end of ctx does.
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
	// The last ones undo, and do so whoever has gone meanwhile.
	undo, stop := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer stop()
	r.finish(undo)
	for _, c := range checks {
		if c.last {
			tell(r.try(undo, c))
		}
	}
	sum := r.sum
	s.Events(volume.Event{Type: "plugin-tested", Plugin: id, Message: fmt.Sprintf(
		"%d ok, %d worked around, %d broken, %d skipped", sum.OK, sum.WorkAround, sum.Broken, sum.Skip)})
	switch {
	case told != nil:
		return sum, told
	case ctx.Err() != nil:
		return sum, ctx.Err()
	case r.refused != nil:
		return sum, r.refused
	case errors.Is(context.Cause(limit), errTime):
		return sum, volume.Errorf(volume.ErrTimeout, "the test of plugin %q was not over after %s; the rest was skipped", id, ask.Timeout).
			WithHint("give it more: --timeout")
	}
	return sum, nil
}

var errTime = errors.New("the time for the test was up")

// undoWithin bounds the undoing after the last check.
const undoWithin = 2 * time.Minute

// begin refuses what cannot be tested now, and stores what is about to be made.
func (s *Service) begin(ctx context.Context, id string, ask Ask) (r *run, err error) {
	if s.Halt != "" {
		return nil, volume.Errorf(volume.ErrRefused, "plugin %q is not asked: %s", id, s.Halt)
	}
	if !s.Plugins.View(id).Known {
		return nil, volume.Errorf(volume.ErrNotFound, "no plugin %q", id).WithHint("volctl plugin list")
	}
	if !s.enter(id) {
		return nil, volume.Errorf(volume.ErrRefused, "plugin %q is being tested already", id).WithHint("wait for the end of that test")
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
		return nil, errors.Join(err, s.drop(ctx, id)) // nothing was made
	}
	// A registration sees the record from now on. One may have come just before it.
	if err := r.unregistered(); err != nil {
		return nil, errors.Join(err, s.drop(ctx, id))
	}
	return r, nil
}

// admit refuses a test that could harm a volume, or that cannot be made.
func (r *run) admit() error {
	if !r.info.Caps.CreateDelete && r.ask.ExternalID == "" {
		return volume.Errorf(volume.ErrRefused, "plugin %q cannot create volumes", r.id).
			WithHint("name one that may be written to: --external-id")
	}
	if r.ask.Kill {
		if err := r.s.Plugins.MayKill(r.id); err != nil {
			return err
		}
		if ids := r.s.Records.InUse(r.id); len(ids) > 0 {
			return volume.Errorf(volume.ErrRefused, "--kill kills plugin %q, and volume %q is in use through it", r.id, ids[0]).
				WithHint("test without --kill, or detach what is in use: %s", volume.Command("volctl claim list --plugin %s", r.id))
		}
	}
	return r.unregistered()
}

// unregistered refuses a volume of the user's that could be claimed.
func (r *run) unregistered() error {
	if r.ask.ExternalID == "" {
		return nil
	}
	if id, ok := r.s.Records.Registered(r.info.Driver, r.ask.ExternalID); ok {
		return volume.Errorf(volume.ErrRefused, "external id %q is volume %q, and a test could disturb it", r.ask.ExternalID, id).
			WithHint("name a volume that nobody uses, or deregister it first: %s", volume.Command("volctl volume deregister %s", id))
	}
	return nil
}

// plan decides all names and paths of the test.
func (r *run) plan() {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails
	tag := hex.EncodeToString(b[:])
	// No id of a volume or an alloc holds a slash, so that no path of theirs can
	// be one of these.
	id := "test/" + tag
	at := func(n int) string { return r.s.Paths.TargetPath(r.id, fmt.Sprintf("%s/%d", id, n), id, false) }
	hide := filepath.Join(filepath.Dir(at(hidden)), ".hidden")
	paths := []string{first: at(first), second: at(second), long: r.lengthen(at(long)), hidden: filepath.Join(hide, "v")}
	r.rec = volume.Scratch{
		ID: tag, Begun: time.Now().UTC(), NodeID: r.info.NodeID,
		Staging: r.s.Paths.StagingPath(r.id, id), Targets: paths, File: ".volagent-test-" + tag,
		Capability: volume.Capability{Access: r.access(), Attachment: volume.FileSystem}, MountOptions: r.ask.MountOptions,
		Parameters: r.ask.Parameters, Topology: r.info.DefaultTopology(), Capacity: r.ask.Capacity, Secrets: r.ask.Secrets,
	}
	r.rec.Dirs = append(r.rec.Dirs, hide)
	for n := range targets {
		r.rec.Dirs = append(r.rec.Dirs, filepath.Dir(at(n)))
	}
	r.rec.Dirs = append(r.rec.Dirs, r.rec.Staging)
	if r.ask.ExternalID != "" {
		r.vol = volume.ScratchVolume{ExternalID: r.ask.ExternalID, Context: r.ask.Context}
		r.rec.Volumes = []volume.ScratchVolume{r.vol}
	}
	r.sum = Summary{
		Driver: r.info.Driver, Version: r.info.Version, NodeID: r.info.NodeID,
		Attaches: r.info.Caps.Attach, Stages: r.info.Caps.Stage, Creates: r.info.Caps.CreateDelete,
	}
}

// maxPath is what CSI makes plugins accept, in bytes.
const maxPath = 128

// lengthen makes a path as long as CSI allows, or as the agent's paths can be where the
// data dir is long.
func (r *run) lengthen(path string) string {
	x := strings.Repeat("x", maxPath)
	longest := max(maxPath, len(r.s.Paths.TargetPath(r.id, x, x, false)))
	return path + strings.Repeat("x", max(0, longest-len(path)))
}

func (r *run) access() volume.AccessMode {
	switch {
	case r.ask.Access != "":
		return r.ask.Access
	case r.info.Caps.NodeMultiWriter:
		return volume.SingleNodeMultiWriter
	default:
		return volume.SingleNodeWriter
	}
}

// save stores the record as it is now.
func (r *run) save(ctx context.Context) error {
	rec := r.rec // what is stored is read by others, and never written again
	rec.Volumes = slices.Clone(rec.Volumes)
	if err := r.s.Records.SaveScratch(context.WithoutCancel(ctx), r.id, &rec); err != nil {
		return fmt.Errorf("cannot store what the test of plugin %q is about to make: %w", r.id, err)
	}
	return nil
}

// try makes one check, unless it cannot be made.
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
	f := c.do(ctx, r)
	if !c.last && f.verdict != OK && over(ctx) {
		r.dirty = true // what was cut off says nothing about the plugin
		return skipped("%s", context.Cause(ctx))
	}
	if f.verdict != OK && !c.kills && !c.last {
		r.notice(ctx, before)
	}
	if c.kills || c.last || r.ready(ctx) != nil || r.s.Plugins.View(r.id).Incarnation == before {
		return f
	}
	r.dirty = true
	return broken("the plugin ended during this check; %s", f.said)
}

// moment is how much sooner than we a plugin may hear that the time is up: it is
// told the deadline with each call.
const moment = 100 * time.Millisecond

// over reports whether the time is up.
func over(ctx context.Context) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < moment {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// noticeWithin is how long the end of a plugin's process may take to be noticed.
const noticeWithin = 5 * time.Second

// notice waits, after a check that did not go well, until an end of the plugin's
// process shows in its state: the call that was cut off hears of it sooner, and
// the next check would be blamed.
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

// readyWithin is how long a plugin that ended is waited for.
const readyWithin = time.Minute

// ready waits until the plugin is ready.
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

// finish takes the volume off the host, before it is detached and deleted. What
// is left is for the last check to tell.
func (r *run) finish(ctx context.Context) {
	if r.vol.ExternalID == "" || r.ready(ctx) != nil {
		return
	}
	if r.vol.Name == "" && r.wrote && r.wantPublished(ctx, first) == "" {
		r.wrote = remove(ctx, r.rec.Targets[first], r.rec.File) != nil
	}
	_ = r.wantBare(ctx)
	if r.late {
		pause(ctx, r.s.grace())
	}
	if r.anywhere(ctx) {
		_ = r.wantBare(ctx)
	}
}

// anywhere looks at all paths of the test for mounts that no check knows of.
func (r *run) anywhere(ctx context.Context) (found bool) {
	for n, path := range r.rec.Targets {
		if !r.nothing(ctx, path) {
			r.touched[n], r.dirty, found = true, true, true
		}
	}
	if !r.nothing(ctx, r.rec.Staging) {
		r.dirty, found = true, true
	}
	return found
}

// pause waits for a while, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
