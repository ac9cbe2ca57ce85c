package volume_test

import (
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// The code in this file simulates the world for TestExplore: one host, one plugin, one volume and
// two allocs. The simulation knows the real mounts, which may differ from the record.

// allocs lists the users of the volume. The variables targets and binds list the paths of its
// mounts.
var (
	allocs  = [2]string{"a", "b"}
	targets = [2]string{"/t/a", "/t/b"}
	binds   = [2]string{"/at/a", ""}
)

const stagingPath = "/s"

// place describes the mount at one path. If the path has no mount, id is 0.
type place struct {
	id   uint8 // differs from the ids of all other existing and recorded mounts
	dead bool
	bare bool // the mount shows an empty directory of the agent instead of the volume
	// stale is set if the mount appeared late, after the agent had already undone the call that
	// made it. Such a mount may have the options of an earlier claim.
	stale bool
}

// variant combines the capabilities and the behavior of a plugin with the requests that users make.
type variant struct {
	name    string
	attach  bool
	stage   bool
	hollow  bool // staging makes no mount
	own     bool // the first alloc requests another owner of the volume's root
	bind    bool // the first alloc has an own directory
	expand  bool // users also expand the volume
	offline bool // the plugin expands only volumes that are not in use
	kept    bool // the bind mount is the owner of the first claim, and users can unmount it
	escape  bool // users also detach without the plugin and deregister by force
	goes    bool // the host may go down
	raw     bool // the volume is a block device, and a claim may be detached without the plugin
	again   bool // users deregister by force and register the same storage again
	shared  bool // the host needs a hold in a cluster, and other hosts want it too
	trust   bool // after a boot, the host may use its hold without an answer of the cluster
	remote  bool // other hosts have the controllers, and only the cluster knows them
}

// world is the real state of the host, the plugin and the storage.
type world struct {
	attached bool
	staged   bool
	stage    place
	target   [2]place
	bound    [2]place
	late     late // calls on which the plugin is still working
	negated  late // the late calls that the agent has undone and has not repeated since
	boots    uint8
	told     [2]bool // the targets that the plugin itself considers published
	owned    bool    // the mount of the first alloc has the requested owner
	grown    bool    // the storage was expanded
	filled   bool    // the contents of the storage were also expanded
	unseen   bool    // a lazily unmounted mount is still in use
	hold     holding // which host has the hold in the cluster's store
	token    uint8   // identifies the hold of this host
	// confirmed is set if the store shows the attachment of this host as made.
	confirmed bool
	takenOver bool // another host has taken over the last ControllerPublishVolume, and has detached the volume
	had       bool // this host has the hold, as far as it can know: another host may have taken the hold over
	asked     bool // the agent has asked the store for the hold since its last start
}

// late is a set of calls that may still take effect.
type late uint16

const (
	lateStage late = 1 << iota
	latePublishA
	latePublishB
	lateUnstage
	lateUnpublishA
	lateUnpublishB
	lateAttach
	lateDetach
	lateExpand // a ControllerExpandVolume, which makes no mount
	lateAcquire
	lateGiveUp

	lateMounts      = lateStage | latePublishA | latePublishB
	lateAttachments = lateAttach | lateDetach
	lateStore       = lateAcquire | lateGiveUp // transactions in the cluster's store
)

func latePublish(i int) late   { return latePublishA << i }
func lateUnpublish(i int) late { return lateUnpublishA << i }

// each calls fn for every call in the set.
func (l late) each(fn func(late)) {
	for one := lateStage; one <= lateGiveUp; one <<= 1 {
		if l&one != 0 {
			fn(one)
		}
	}
}

func (w *world) mounted() bool {
	return w.stage.id != 0 || w.target[0].id != 0 || w.target[1].id != 0 || w.bound[0].id != 0 || w.bound[1].id != 0
}

// boot changes the world as a reboot does. The storage system continues with its calls.
func (w *world) boot() {
	*w = world{
		late: w.late & (lateAttachments | lateStore), attached: w.attached, grown: w.grown, filled: w.filled, boots: w.boots + 1,
		hold: w.hold, token: w.token, confirmed: w.confirmed, takenOver: w.takenOver, had: w.had,
	}
}

// bootID returns the id of the current boot.
func (w *world) bootID() string { return fmt.Sprint("boot ", w.boots) }

// die ends the process that serves the mounts.
func (w *world) die() {
	for _, p := range []*place{&w.stage, &w.target[0], &w.target[1], &w.bound[0], &w.bound[1]} {
		p.dead = p.id != 0
	}
}

// vanish unmounts a target without the agent's knowledge. If i is negative, vanish unmounts the
// staging path.
func (w *world) vanish(i int) {
	if i < 0 {
		w.stage, w.staged = place{}, false
		return
	}
	w.target[i], w.told[i] = place{}, false
}

// lose simulates the removal of a block device. The plugin then no longer considers the volume
// staged, and its device nodes are dead. The staging path of a block device has no mount.
func (w *world) lose() {
	w.staged = false
	for i := range w.target {
		w.target[i].dead = w.target[i].id != 0
	}
}

// unmounted reports whether the mount that owns the first claim is recorded but does not exist.
func (w *world) unmounted(r volume.Record) bool {
	c, ok := r.Claims[allocs[0]]
	k := c.Keeper()
	return ok && c.Wanted && k.ByMount() && k.Mount.ID != uint64(w.bound[0].id)
}

// land lets a late call take effect. If the path already has a mount, the plugin keeps that mount.
func (w *world) land(v variant, l late, fresh uint8) {
	stale := w.negated&l != 0
	w.late, w.negated = w.late&^l, w.negated&^l
	switch l {
	case lateStage:
		w.doStage(v, fresh)
	case lateAttach:
		w.attached = true
	case lateDetach:
		w.attached = false
	case lateExpand:
		w.grown = true
	case lateAcquire:
		if w.hold == none {
			w.acquire(fresh)
		}
	case lateGiveUp:
		w.giveUp()
	case lateUnstage:
		w.stage, w.staged = place{}, false
	}
	for i := range allocs {
		switch l {
		case latePublish(i):
			made := w.target[i].id == 0
			w.doPublish(v, i, fresh)
			if made {
				w.target[i].stale = stale
			}
		case lateUnpublish(i):
			w.target[i], w.told[i] = place{}, false
		}
	}
}

func (w *world) doStage(v variant, fresh uint8) {
	w.staged = true
	if w.stage.id == 0 && !v.hollow {
		w.stage = place{id: fresh}
	}
}

func (w *world) doPublish(v variant, i int, fresh uint8) {
	w.told[i] = true
	if w.target[i].id == 0 {
		w.target[i] = place{id: fresh, bare: v.stage && !w.staged}
		w.owned = w.owned && i != 0
	}
}

func identity(p place) *volume.MountIdentity {
	if p.id == 0 {
		return nil
	}
	return &volume.MountIdentity{ID: uint64(p.id)}
}

func sight(p place) volume.Sight {
	switch {
	case p.id == 0:
		return volume.Sight{}
	case p.dead:
		return volume.Sight{Seen: volume.SeenDead, Identity: *identity(p)}
	default:
		return volume.Sight{Seen: volume.SeenMount, Identity: *identity(p)}
	}
}

// over is a set of late effects that the agent considers impossible. It also says whether the
// cluster is reachable.
type over uint8

const (
	mountsOver over = 1 << iota
	attachmentsOver
	clusterAway   // the host can change nothing in the cluster
	clusterSilent // the only reason is that the store does not answer
	allOver       = mountsOver | attachmentsOver
	alone         = clusterAway | clusterSilent
)

// early reports whether the agent is wrong, because one of the calls in l may still take effect.
func (o over) early(l late) bool {
	return o&mountsOver != 0 && l&^(lateExpand|lateAttachments|lateStore) != 0 || o&attachmentsOver != 0 && l&lateAttachments != 0
}

// overs returns the values of over that can lead to different decisions.
func (v variant) overs() []over {
	all := []over{0, allOver}
	if v.attach {
		all = []over{0, mountsOver, attachmentsOver, allOver}
	}
	if v.shared {
		for _, o := range slices.Clone(all) {
			all = append(all, o|alone)
			if v.trust {
				all = append(all, o|clusterAway)
			}
		}
	}
	return all
}

// observe returns the agent's view of the world. At most one mount hangs: the mount at the staging
// path, or the mount of one alloc.
func (w *world) observe(v variant, r volume.Record, up serving, o over, parked parkedSet, hung int) volume.Observed {
	away := map[bool]string{true: "the cluster is not reachable"}[o&clusterAway != 0]
	sight := func(p place) volume.Sight {
		if p.id != 0 && hung >= 0 && *[]*place{&w.stage, &w.target[0], &w.target[1]}[hung] == p {
			return volume.Sight{Seen: volume.SeenHung, Detail: "no answer"}
		}
		return sight(p)
	}
	obs := volume.Observed{
		Plugin: up.view(v, o&clusterAway != 0), Cluster: volume.Cluster{Away: away, Silent: o&clusterSilent != 0},
		Boot: w.bootID(), Staging: sight(w.stage), Parked: parked.keys(),
		WatchOver: o&mountsOver != 0, AttachmentOver: o&attachmentsOver != 0,
		Targets: map[string]volume.Sight{}, Binds: map[string]volume.Sight{}, Watched: map[string]volume.Sight{},
	}
	for i, alloc := range allocs {
		if c, ok := r.Claims[alloc]; ok {
			obs.Targets[alloc] = sight(w.target[i])
			if c.At != "" {
				obs.Binds[alloc] = sight(w.bound[i])
			}
		}
	}
	for _, watch := range r.Node.Watches {
		obs.Watched[watch.Path] = sight(w.stage)
		for i := range allocs {
			if watch.Path == targets[i] {
				obs.Watched[watch.Path] = sight(w.target[i])
			}
		}
	}
	return obs
}

// larger is the size in bytes that an expansion requests. The initial size is 1.
const larger = 2

// caps returns the capabilities of the plugin.
func (v variant) caps() plugin.Caps {
	return plugin.Caps{Attach: v.attach, Stage: v.stage, Expand: v.expand, NodeExpand: v.expand, Offline: v.offline}
}

// serving says which services of the plugin are ready.
type serving uint8

const (
	bothUp serving = iota // in this value and the next one, one process serves all calls
	noneUp
	nodeUp // the services are separate, and the controllers are down
	controllerUp
)

func (up serving) view(v variant, away bool) plugin.View {
	p := plugin.View{Known: true, Ready: up == bothUp, State: "test", Info: plugin.Info{
		ID: "p", NodeID: "n", Caps: v.caps(),
	}}
	if v.remote && away {
		p.Apart = &plugin.Apart{Node: plugin.Service{Ready: p.Ready, Lack: "no node"}, Controller: plugin.Service{Unasked: true, Lack: "not known yet"}}
		return p
	}
	if up == nodeUp || up == controllerUp {
		p.Apart = &plugin.Apart{
			Node: plugin.Service{Ready: up == nodeUp, Lack: "no node"}, Controller: plugin.Service{Ready: up == controllerUp, Lack: "no controller"},
		}
	}
	return p
}

// answers reports whether the service that a step calls is ready.
func (up serving) answers(k call.Method) bool {
	switch k {
	case call.ControllerPublish, call.ControllerUnpublish, call.ControllerExpand:
		return up == bothUp || up == controllerUp
	default:
		return up == bothUp || up == nodeUp
	}
}

// how is the result of one simulated step.
type how uint8

const (
	ok       how = iota
	fail         // returns an error and has no effect
	failDone     // returns an error although the step has taken effect
	failLate     // returns an error, and the step takes effect later
	final        // is refused finally and has no effect
	lie          // a stage answers OK although it has no effect
	unsent       // is not sent, because the cluster is not reachable
	refused      // the store refuses the step because of a call of another host
)

func (h how) String() string {
	return [...]string{"ok", "fails", "fails, yet is done", "fails, is done later", "is refused", "answers OK, did nothing", "is not sent", "is refused by the store"}[h]
}

// fates lists the possible results of a step. A crash is not among them.
func fates(v variant, a volume.Action) []how {
	switch a.Kind {
	case volume.Plan, volume.Doubt, volume.Take, volume.Free, volume.EndWatch, volume.Trust:
		return []how{ok}
	case volume.Acquire:
		return []how{ok, fail, failDone, failLate, refused}
	case volume.Confirm:
		return []how{ok, fail, failDone, refused}
	case volume.GiveUp:
		return []how{ok, fail, failDone, failLate}
	case call.ControllerExpand:
		return []how{ok, fail, failDone, failLate, final}
	case call.NodeExpand:
		return []how{ok, fail, failDone, final}
	case volume.Prove, volume.Unmount:
		return []how{ok, fail}
	case call.NodeStage:
		if v.hollow { // without a mount, the agent cannot observe a late effect
			return []how{ok, fail, failDone}
		}
		return []how{ok, fail, failDone, failLate, lie}
	case call.ControllerPublish, call.ControllerUnpublish:
		if v.shared {
			return []how{ok, fail, failDone, failLate, unsent}
		}
		return []how{ok, fail, failDone, failLate}
	case call.NodePublish, call.NodeUnpublish, call.NodeUnstage:
		return []how{ok, fail, failDone, failLate}
	default:
		return []how{ok, fail, failDone}
	}
}

// These are the errors of a failed step. If the plugin has refused a call, the call has no late
// effect. After any other error, a late effect is possible.
var (
	errRefused   = &volume.CallError{Step: "step", Code: "FailedPrecondition", Retry: volume.RetryBackoff, Answered: true}
	errUncertain = &volume.CallError{Step: "step", Code: "Internal", Retry: volume.RetryBackoff, Answered: true}
	errFinal     = &volume.CallError{Step: "step", Code: "OutOfRange", Retry: volume.RetryChange, Answered: true}
	errGivenUp   = &volume.CallError{Step: "step", Code: "DeadlineExceeded", Retry: volume.RetryBackoff}
)

// do runs a step and returns the outcome that the agent receives.
func (w *world) do(v variant, a volume.Action, h how, fresh uint8) volume.Outcome {
	i := max(0, indexOf(a))
	effect := h == ok || h == failDone
	if stores(a.Kind) {
		return w.store(a, h, fresh)
	}
	if v.shared && w.hold != mine && controls(a.Kind) {
		return volume.Outcome{Err: errAway, Unsent: true} // the store refuses to announce the call
	}
	if a.Kind == call.ControllerPublish && h != unsent {
		w.takenOver = false // the store shows a new call
	}
	if h == failLate {
		w.late |= map[call.Method]late{
			call.NodeStage: lateStage, call.NodePublish: latePublish(i),
			call.ControllerPublish: lateAttach, call.ControllerUnpublish: lateDetach,
			call.ControllerExpand: lateExpand, call.NodeUnstage: lateUnstage, call.NodeUnpublish: lateUnpublish(i),
		}[a.Kind]
	}
	var out volume.Outcome
	if effect {
		out = w.effect(v, a, i, fresh)
	}
	switch {
	case h == final:
		return volume.Outcome{Err: errFinal}
	case h == unsent:
		return volume.Outcome{Err: errAway, Unsent: true}
	case h == lie:
		return w.shown(w.stage)
	case h == failLate && (a.Forward() || a.Kind == call.ControllerUnpublish):
		return volume.Outcome{Err: errUncertain}
	case h == failLate:
		return volume.Outcome{Err: errGivenUp}
	case h != ok:
		return volume.Outcome{Err: errRefused}
	default:
		return out
	}
}

// effect runs a step without a fault.
func (w *world) effect(v variant, a volume.Action, i int, fresh uint8) volume.Outcome {
	switch a.Kind {
	case call.ControllerPublish:
		w.attached = true
	case call.ControllerUnpublish:
		w.attached = false
	case call.NodeStage:
		w.doStage(v, fresh)
		return w.shown(w.stage)
	case call.ControllerExpand:
		w.grown = true
		return volume.Outcome{Capacity: larger, NodeRequired: true}
	case call.NodeExpand:
		w.filled = w.grown
	case call.NodeUnstage:
		w.stage, w.staged = place{}, false
	case call.NodePublish:
		if v.raw && !w.staged {
			return volume.Outcome{Err: errRefused}
		}
		w.doPublish(v, i, fresh)
		w.negated &^= latePublish(i)
		out := w.shown(w.target[i])
		if w.target[i].bare {
			out = volume.Outcome{Err: errUncertain, StageSuspect: true}
		}
		return out
	case call.NodeUnpublish:
		w.target[i], w.told[i] = place{}, false
		w.negated |= w.late & latePublish(i)
	case volume.Unmount:
		return w.unmount(a, i)
	case volume.Own:
		w.owned = true
	case volume.Bind:
		if w.bound[i].id == 0 {
			w.bound[i] = place{id: fresh}
		}
		return w.shown(w.bound[i])
	case volume.Unbind:
		w.bound[i] = place{}
	case volume.Prove:
		if w.mounted() || w.unseen {
			return volume.Outcome{Err: errUncertain}
		}
	}
	return volume.Outcome{}
}

// unmount unmounts a path on the host without the plugin. After a lazy unmount, a process may still
// have a file open.
func (w *world) unmount(a volume.Action, i int) volume.Outcome {
	p := &w.target[i]
	if a.Alloc == "" {
		p = &w.stage
	}
	was := *p
	*p = place{}
	if was.id == 0 || a.How != volume.ByLazy {
		return volume.Outcome{}
	}
	w.unseen = true
	return volume.Outcome{Unseen: &volume.Unseen{Path: a.Path}}
}

// shown returns the outcome of a call after the plugin has answered OK and the agent has checked
// the mount p.
func (w *world) shown(p place) volume.Outcome {
	if p.dead {
		return volume.Outcome{Err: errUncertain}
	}
	return volume.Outcome{Mount: identity(p), Boot: w.bootID()}
}

// indexOf returns the index of the alloc that a step concerns, or -1 for a step of the whole
// volume.
func indexOf(a volume.Action) int {
	for i, alloc := range allocs {
		if a.Alloc == alloc {
			return i
		}
	}
	return -1
}

// broken returns the rule that a step would violate, or "". It uses the real state of the world in
// addition to the record.
func (w *world) broken(v variant, r volume.Record, a volume.Action) string {
	i := max(0, indexOf(a))
	if bad := w.brokenHold(v, r, a); bad != "" {
		return bad
	}
	if v.offline && a.Forward() && r.Volume.Expansion.Want > 0 {
		return "made while it is being expanded, which its plugin does only with what is not in use"
	}
	switch a.Kind {
	case call.ControllerPublish:
		if w.late&lateDetach != 0 {
			return "attached while a late detach may still come"
		}
	case call.NodeStage:
		switch {
		case v.attach && !w.attached:
			return "staged without an attachment"
		case w.late&lateUnstage != 0:
			return "staged while a late unstage may still come"
		case w.skipped(r, -1):
			return "staged before the plugin was told what it was not asked to undo"
		case a.Path != stagingPath:
			return fmt.Sprintf("staged at %q, not at the one staging path", a.Path)
		}
	case call.NodePublish:
		switch {
		case v.attach && !w.attached:
			return "published without an attachment"
		case w.late&lateUnpublish(i) != 0:
			return "published while a late unpublish may still come"
		case w.late&lateUnstage != 0:
			return "published while a late unstage may still come"
		case w.skipped(r, i):
			return "published before the plugin was told that it is unpublished"
		case v.stage && r.Node.Staged != volume.Present:
			return "published while the record says not staged"
		case w.target[i].stale:
			return "published on the mount of a call that was negated"
		case a.Path != targets[i]:
			return "published at another path than the claim's target"
		}
	case call.ControllerExpand:
		if v.offline && w.inUse() {
			return "expanded while it is in use"
		}
	case call.NodeExpand:
		return w.brokenNodeExpand(v, a)
	case volume.Unmount:
		return w.brokenUnmount(r, a, i)
	case call.NodeUnpublish:
		if w.bound[i].id != 0 && w.target[i].id != 0 && r.Claims[a.Alloc].Published != volume.Absent {
			return "unpublished under the user's own mount"
		}
	case call.NodeUnstage:
		if w.target[0].id != 0 || w.target[1].id != 0 {
			return "unstaged while a target is mounted"
		}
		if w.told[0] || w.told[1] {
			return "unstaged while the plugin has a target published"
		}
		for _, c := range r.Claims {
			if c.Published != volume.Absent {
				return "unstaged while the record says published"
			}
		}
	case call.ControllerUnpublish:
		if w.mounted() || w.staged {
			return "detached while something is mounted"
		}
		if w.unseen {
			return "detached while somebody still uses what was unmounted lazily"
		}
		if w.told[0] || w.told[1] {
			return "detached before the plugin was told that it is unpublished"
		}
		if w.late&lateMounts != 0 {
			return "detached while a late mount may still come"
		}
		if a.Sure && w.late&lateAttach != 0 {
			return "a detach counts as the last one, and a late attach may still come"
		}
	case volume.Bind, volume.Own:
		if t := w.target[i]; t.id == 0 || t.dead || t.bare {
			return "used while the target is not mounted"
		}
	case volume.Free:
		if path := targets[i]; w.target[i].id != 0 && !watches(r, path) || w.bound[i].id != 0 {
			return "freed a claim that is still mounted"
		}
	}
	return ""
}

// inUse reports whether the host has any side of the volume, or may get one by a late effect.
func (w *world) inUse() bool {
	return w.attached || w.staged || w.mounted() || w.told[0] || w.told[1] || w.late&lateMounts != 0
}

// brokenNodeExpand returns the rule that a NodeExpand step would violate, or "".
func (w *world) brokenNodeExpand(v variant, a volume.Action) string {
	at := w.stage
	for i, path := range targets {
		if a.Path == path {
			at = w.target[i]
		}
	}
	switch {
	case !w.grown:
		return "the node is to expand what was not made larger"
	case v.stage && !w.staged:
		return "the node is to expand what is not staged"
	case at.id == 0 || at.dead || at.bare:
		return "the node is to expand what is not mounted at " + a.Path
	}
	return ""
}

// brokenUnmount returns the rule that a step without the plugin would violate, or "".
func (w *world) brokenUnmount(r volume.Record, a volume.Action, i int) string {
	c := r.Claims[a.Alloc]
	switch {
	case r.Leftover:
		return "a forced deregister unmounts nothing by itself"
	case a.Alloc != "" && (c.Wanted || c.Without == "" || a.How != c.Without):
		return "unmounted without the plugin in a way that nobody asked for"
	case a.Alloc != "" && w.bound[i].id != 0 && w.target[i].id != 0:
		return "unmounted under the user's own mount"
	case a.Alloc == "" && (w.target[0].id != 0 || w.target[1].id != 0):
		return "the staging is unmounted while a target is mounted"
	}
	for _, c := range r.Claims {
		if a.Alloc == "" && (c.Wanted || c.Without == "" || a.How != c.Without) {
			return "the staging is unmounted under a claim that did not ask for it"
		}
	}
	return ""
}

// skipped reports whether the plugin still considers a target published that the record shows as
// undone. It checks the target of one alloc, or all targets if i is negative.
func (w *world) skipped(r volume.Record, i int) bool {
	for j, alloc := range allocs {
		if w.told[j] && w.target[j].id == 0 && r.Claims[alloc].Published == volume.Absent && (i < 0 || i == j) {
			return true
		}
	}
	return false
}

// hasPendingCall reports whether the record has a pending call of the given kind for the path.
func hasPendingCall(r volume.Record, kind call.Method, path string) bool {
	for _, d := range r.Node.PendingCalls {
		if d.Kind == kind && d.Path == path {
			return true
		}
	}
	return false
}

// watchesAttachment reports whether the record expects a late ControllerPublishVolume. If undo is
// set, it reports whether the record expects a late ControllerUnpublishVolume.
func watchesAttachment(r volume.Record, undo bool) bool {
	return slices.Contains(r.Node.Watches, volume.Watch{Attachment: true, Undo: undo})
}

// watches reports whether the record expects a late mount at a path. The function awaits below
// reports the same for a late unmount.
func watches(r volume.Record, path string) bool { return watched(r, path, false) }
func awaits(r volume.Record, path string) bool  { return watched(r, path, true) }

func watched(r volume.Record, path string, undo bool) bool {
	for _, w := range r.Node.Watches {
		if w.Path == path && w.Undo == undo {
			return true
		}
	}
	return false
}
