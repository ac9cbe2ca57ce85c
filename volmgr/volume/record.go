package volume

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// ClaimState is a stage in the life of a claim.
type ClaimState string

// These are the states of a claim, from the first to the last. The API has one more state,
// ready-to-free. The agent never stores this state, because the same change deletes the claim.
const (
	Pending            ClaimState = "pending"
	Mounted            ClaimState = "mounted"
	Unpublishing       ClaimState = "unpublishing"
	NodeDetached       ClaimState = "node-detached"
	ControllerDetached ClaimState = "controller-detached"
)

// storedMounted is the stored name of the state Mounted. The name comes from Nomad.
const storedMounted = "taken"

// MarshalText returns the stored name of the state.
func (s ClaimState) MarshalText() ([]byte, error) {
	if s == Mounted {
		return []byte(storedMounted), nil
	}
	return []byte(s), nil
}

// UnmarshalText parses the stored name of a state. It accepts unknown names.
func (s *ClaimState) UnmarshalText(text []byte) error {
	*s = ClaimState(text)
	if *s == storedMounted {
		*s = Mounted
	}
	return nil
}

// Claim is the right of one alloc to a volume, with the state of its mounts.
type Claim struct {
	Alloc  string     `json:"alloc"`
	Seq    uint64     `json:"seq"`    // number that gives the order in which claims were admitted
	Wanted bool       `json:"wanted"` // false after a user or the reaper has detached the claim
	State  ClaimState `json:"state"`
	Terms
	Since     time.Time      `json:"since"`
	Target    string         `json:"target"`              // path that is chosen when the claim is made, and never changes
	Published Side           `json:"published,omitempty"` // state of NodePublishVolume at Target
	Mount     *MountIdentity `json:"mount,omitempty"`     // mount at Target if Published is Present
	Bound     Side           `json:"bound,omitempty"`     // state of the bind mount at At

	BoundMount *MountIdentity `json:"bound_mount,omitempty"`

	// Adopted is set if the agent rebuilt the claim from its mounts, because the state database was
	// lost. An adopted claim counts as a writer.
	Adopted bool `json:"adopted,omitempty"`

	// Owned is set if the root of the recorded mount has the ownership that Own requests.
	Owned bool `json:"owned,omitempty"`

	// Without says how the agent unmounts if it detaches the claim without calling the plugin.
	Without Without `json:"without,omitempty"`
}

// FUSE reports whether a user-space process serves the claim's mount.
func (c Claim) FUSE() bool { return c.Mount.FUSE() || c.BoundMount.FUSE() }

// Path returns the path at which the alloc uses the volume.
func (c Claim) Path() string {
	if c.At != "" {
		return c.At
	}
	return c.Target
}

// Private reports whether only root needs access to the claim's target. This is true if the alloc
// uses the volume at an own directory or in a container.
func (c Claim) Private() bool {
	return c.At != "" || c.Owner.Kind == OwnerRuntime || filepath.Base(filepath.Dir(c.Target)) == PrivateDir
}

// InPlace reports whether the observed mounts are the recorded ones. The parameter target is the
// observed state of the claim's target, and bind is that of its own directory.
func (c Claim) InPlace(target, bind Sight) bool {
	if c.Published != Present || !c.owned() || target.Seen != SeenMount || !target.Is(c.Mount) {
		return false
	}
	return c.At == "" || c.Bound == Present && bind.Seen == SeenMount && bind.Is(c.BoundMount)
}

// Mode holds the access mode and the mount options that all claims of a volume share.
type Mode struct {
	call.Capability
	FSType     string   `json:"fs_type,omitempty"`
	MountFlags []string `json:"mount_flags,omitempty"`
	// Group is a numeric group id. A plugin with VOLUME_MOUNT_GROUP mounts the volume for this
	// group.
	Group string `json:"group,omitempty"`
}

// Watch is the expectation of a late effect, after a call whose result is unknown. Such a call may
// still mount the volume at Path. If Undo is set, the call may instead unmount the next mount at
// Path. If Attachment is set, the call may still connect the volume to this node, or disconnect it
// if Undo is also set.
type Watch struct {
	Path       string `json:"path"`            // empty if Attachment is set
	Alloc      string `json:"alloc,omitempty"` // empty if Path is the staging path
	Undo       bool   `json:"undo,omitempty"`
	Attachment bool   `json:"attachment,omitempty"`
}

// These watches expect a late effect of ControllerPublishVolume or ControllerUnpublishVolume.
var (
	lateAttach = Watch{Attachment: true}
	lateDetach = Watch{Attachment: true, Undo: true}
)

// NodeSide is the state of the volume on this host.
type NodeSide struct {
	Mode *Mode `json:"mode,omitempty"` // nil unless the volume has claims

	// Uses names the sides that the agent may make. The agent stores it before the first call that
	// makes such a side. After a crash, the next agent therefore knows that all other sides are
	// absent.
	Uses Uses `json:"uses,omitzero"`

	Hold Hold `json:"hold,omitzero"` // only for a shared volume

	Attached         Side              `json:"attached,omitempty"` // state of ControllerPublishVolume
	NodeID           string            `json:"node_id,omitempty"`  // node id in the ControllerPublishVolume call
	PublishContext   map[string]string `json:"publish_context,omitempty"`
	AttachedReadOnly bool              `json:"attached_readonly,omitempty"`

	// Proven is set after a proof of unmount. The agent calls ControllerUnpublishVolume only after
	// such a proof. It does not store Proven, so a restart clears it.
	Proven bool `json:"-"`

	Staged      Side           `json:"staged,omitempty"` // state of NodeStageVolume
	StagingPath string         `json:"staging_path,omitempty"`
	Mount       *MountIdentity `json:"mount,omitempty"` // mount at StagingPath, or nil if staging made no mount

	// Boot is the id of the boot in which the agent last staged or published the volume. Device
	// numbers are valid only in this boot. The same is true for state that the agent cannot
	// observe.
	Boot string `json:"boot,omitempty"`

	// Devices lists the block devices under this volume's mounts. The proof of unmount checks them.
	Devices []Device `json:"devices,omitempty"`

	Watches []Watch `json:"watches,omitempty"`

	// PendingCalls lists the calls that were skipped. The agent makes them before it stages the
	// volume again, and before ControllerUnpublishVolume.
	PendingCalls []PendingCall `json:"owed,omitempty"`

	// Unseen lists the lazily unmounted mounts that may still be in use. The agent clears the list
	// after the plugin has received all pending calls and the volume is disconnected.
	Unseen []Unseen `json:"unseen,omitempty"`
	Seq    uint64   `json:"seq,omitempty"` // value of Claim.Seq in the newest claim
}

// Uses names the optional sides of a volume. Some plugins need no ControllerPublishVolume, and some
// plugins need no staging.
type Uses struct {
	Attach bool `json:"attach,omitempty"`
	Stage  bool `json:"stage,omitempty"`
}

// Record holds all stored data about a volume. It is a value: a function that changes a record
// returns a new record, and never modifies a map, slice or pointer target of the old record.
type Record struct {
	Volume     Volume           `json:"volume"`
	Generation uint64           `json:"generation"` // increases by one with each change
	Node       NodeSide         `json:"node"`
	Claims     map[string]Claim `json:"-"` // by alloc; the database stores each claim under its own key

	// Guards lists the directories on which the agent sets a guard, which refuses writes while the
	// volume is not mounted there. The agent records a directory before it sets the guard.
	Guards []string `json:"guards,omitempty"`

	// GuardDirs identifies the directories in Guards by more than their paths.
	GuardDirs []GuardedDir `json:"guard_dirs,omitempty"`

	// Rescoping is set while the agent moves the volume to another scope. If the agent stops
	// meanwhile, only the cluster's store shows which scope the volume has. Volume.Shared is not set.
	Rescoping bool `json:"rescoping,omitempty"`

	// Leftover is set on the record that the agent keeps after a forced deregister. The volume is
	// no longer registered, but its storage still has pending calls, which wait until the plugin is
	// ready.
	Leftover bool `json:"-"`
}

// leftoverKey is the prefix of the key of a record with Leftover set. Volume ids contain no slash,
// so no other record has such a key.
const leftoverKey = "debt/"

// Key returns the unique key of the record, which is normally the volume id. After a forced
// deregister, another volume may get the same id. The key of the old record therefore consists of
// the driver and the external id.
func (r Record) Key() string {
	if !r.Leftover {
		return r.Volume.ID
	}
	return leftoverKey + r.Volume.Driver + "\x00" + r.Volume.ExternalID
}

// LeftoverKey returns the key of the record that the agent keeps for a storage volume after a
// forced deregister. ParseLeftoverKey is the inverse function.
func LeftoverKey(driver, external string) string {
	return Record{Leftover: true, Volume: Volume{Driver: driver, ExternalID: external}}.Key()
}

// ParseLeftoverKey returns the storage volume in a key from LeftoverKey. For all other keys, ok is
// false.
func ParseLeftoverKey(key string) (driver, external string, ok bool) {
	rest, ok := strings.CutPrefix(key, leftoverKey)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "\x00")
}

// Ordered returns the claims in the order of their admission.
func (r Record) Ordered() []Claim {
	return slices.SortedFunc(maps.Values(r.Claims), func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Alloc, b.Alloc))
	})
}

// Held reports whether the volume is, or may be, connected, staged, published or bound on this
// host.
func (r Record) Held() bool {
	return r.left() || len(r.Node.Watches) > 0
}

// Unsettled reports whether a call of an agent that died may still change the volume. It must be
// called on the record that Loaded returns after the crash.
func (r Record) Unsettled() bool {
	v := r.Volume
	return v.Provision != Provisioned || len(v.Modifying) > 0 || v.Expansion.Want > 0 || v.Expansion.nodeWants() || len(r.Node.Watches) > 0
}

// left reports whether the record has any side, claim, hold or pending call. Unlike Held, it ignores
// watches.
func (r Record) left() bool {
	n := r.Node
	return len(r.Claims) > 0 || n.Attached != Absent || n.Staged != Absent || len(n.PendingCalls) > 0 || n.held()
}

// PlaceKind is the reason why a record may have a mount at a place.
type PlaceKind string

// These are the kinds of places. A place of the first three kinds has a side.
const (
	PlaceStaged    PlaceKind = "staged"    // the staging path
	PlacePublished PlaceKind = "published" // the target of a claim
	PlaceBound     PlaceKind = "bound"     // the own directory of a claim
	PlaceWatched   PlaceKind = "watched"   // a late call may mount something here
	PlacePending   PlaceKind = "pending call"
	PlaceUnseen    PlaceKind = "unmounted lazily"
)

// Place is a path at which the agent has, or may have, a mount of a volume.
type Place struct {
	Kind  PlaceKind
	Alloc string // empty if the place belongs to no claim
	Path  string
	Side  Side
	Mount *MountIdentity // the recorded mount, if there is one
}

// Places returns every path at which the agent has, or may have, a mount of the volume. A path with
// several reasons appears several times.
func (r Record) Places() (all []Place) {
	add := func(p Place) {
		if p.Path != "" {
			all = append(all, p)
		}
	}

	if r.Held() {
		add(Place{PlaceStaged, "", r.Node.StagingPath, r.Node.Staged, r.Node.Mount})
	}
	for _, c := range r.Ordered() {
		add(Place{PlacePublished, c.Alloc, c.Target, c.Published, c.Mount})
		add(Place{PlaceBound, c.Alloc, c.At, c.Bound, c.BoundMount})
	}
	for _, w := range r.Node.Watches {
		add(Place{Kind: PlaceWatched, Alloc: w.Alloc, Path: w.Path})
	}
	for _, d := range r.Node.PendingCalls {
		add(Place{Kind: PlacePending, Alloc: d.Alloc, Path: d.Path})
	}
	for _, u := range r.Node.Unseen {
		add(Place{Kind: PlaceUnseen, Path: u.Path})
	}

	return all
}

// Paths returns the paths of all places of the given records.
func Paths(records []Record) map[string]bool {
	paths := map[string]bool{}
	for _, r := range records {
		for _, p := range r.Places() {
			paths[p.Path] = true
		}
	}

	return paths
}

// with returns the record with the claim c, which is added or replaces the earlier claim of the
// same alloc.
func (r Record) with(c Claim) Record {
	r.Claims = maps.Clone(r.Claims)
	if r.Claims == nil {
		r.Claims = map[string]Claim{}
	}
	r.Claims[c.Alloc] = c
	return r
}

// without returns the record without the claim of an alloc. If no claims remain, without also
// clears the mode.
func (r Record) without(alloc string) Record {
	r.Claims = maps.Clone(r.Claims)
	delete(r.Claims, alloc)
	if len(r.Claims) == 0 {
		r.Node.Mode = nil
	}
	return r
}

// enterBoot prepares the record for a step in the given boot. It removes the devices of any other
// boot.
func enterBoot(r Record, boot string) Record {
	if r.Node.Boot != boot {
		r.Node.Boot, r.Node.Devices = boot, nil
	}
	return r
}

// Same reports whether both records describe the same registration of the same storage volume.
// Comparing the ids is not enough, because another volume may later use the same id.
func (r Record) Same(o Record) bool {
	a, b := r.Volume, o.Volume
	return a.Driver == b.Driver && a.ExternalID == b.ExternalID && a.RegisteredAt.Equal(b.RegisteredAt)
}

// unwatched returns the record without the watches for which drop returns true.
func (r Record) unwatched(drop func(Watch) bool) Record {
	if slices.ContainsFunc(r.Node.Watches, drop) {
		r.Node.Watches = slices.DeleteFunc(slices.Clone(r.Node.Watches), drop)
	}
	return r
}

// watching returns the record with one more watch.
func (r Record) watching(w Watch) Record {
	if !slices.Contains(r.Node.Watches, w) {
		r.Node.Watches = append(slices.Clone(r.Node.Watches), w)
	}
	return r
}

// with returns the sides in u together with those that the plugin needs.
func (u Uses) with(i plugin.Info) Uses {
	return Uses{Attach: u.Attach || i.Caps.Attach, Stage: u.Stage || i.Caps.Stage}
}

// Check returns an error if the record violates a condition that Admit, Detach and Apply maintain.
// Only tests and debugging tools call it. The agent uses a record even if Check returns an error.
func (r Record) Check() error {
	var errs []error
	unless := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	bad := unknownState(r)
	unless(bad == "", "%s", bad)
	unless((r.Node.Mode != nil) == (len(r.Claims) > 0), "it has %d claims, and a mode is in force: %t", len(r.Claims), r.Node.Mode != nil)
	unless(r.Node.Mount == nil || r.Node.Staged != Absent, "it has a staged mount and is not staged")
	unless(r.Node.Staged == Absent || r.Node.StagingPath != "", "it is staged nowhere")
	unless(r.Volume.Shared || r.Node.Hold == (Hold{}), "it has a hold and is not shared")
	unless(!r.Node.held() || r.Node.Hold.Operation != "", "its hold has no operation")
	e := r.Volume.Expansion
	unless(e.Want >= 0 && e.Node >= 0 && (!e.Offline || e.Want > 0), "its expansion makes no sense: %+v", e)
	unless(!e.Offline || r.Node.Attached == Absent && r.Node.Staged == Absent, "it is on this host, and is expanded only while it is not")

	seqs := map[uint64]string{}
	for _, c := range r.Claims {
		other, twice := seqs[c.Seq]
		unless(!twice, "the claims of %q and %q have one number", other, c.Alloc)
		seqs[c.Seq] = c.Alloc
		unless(c.Seq > 0 && c.Seq <= r.Node.Seq, "the claim of %q has number %d, and the newest has %d", c.Alloc, c.Seq, r.Node.Seq)
		unless(c.Target != "", "the claim of %q has no target", c.Alloc)
		unless(r.Node.Mode == nil || c.Mode == r.Node.Mode.Capability, "the claim of %q has another mode than the volume", c.Alloc)
		unless(c.Wanted == (c.State == Pending || c.State == Mounted), "the claim of %q is %s, and wanted: %t", c.Alloc, c.State, c.Wanted)
		unless(c.Published != Present || c.Mount != nil, "the claim of %q is published as no mount that is known", c.Alloc)
		unless(c.Bound != Present || c.At != "" && c.BoundMount != nil, "the claim of %q is bound as no mount that is known", c.Alloc)
		unless(c.Bound == Absent || c.At != "", "the claim of %q is bound nowhere", c.Alloc)
		done := c.State == NodeDetached || c.State == ControllerDetached
		unless(!done || c.Published == Absent && c.Bound == Absent, "the claim of %q is %s with something of it left", c.Alloc, c.State)
	}

	return errors.Join(errs...)
}

// unknownState describes a state in the record that this release does not know. It returns "" if
// all states are known.
func unknownState(r Record) string {
	bad := func(what string, s Side) string { return fmt.Sprintf("%s has the unknown state %q", what, s) }
	oldest, what := Claim{}, ""
	for _, c := range r.Claims { // the claims are not sorted, because there may be thousands
		words := c.unrecognised()
		older := cmp.Or(cmp.Compare(c.Seq, oldest.Seq), cmp.Compare(c.Alloc, oldest.Alloc)) < 0
		first := what == "" || older
		if words != "" && first {
			oldest, what = c, words
		}
	}

	if what != "" {
		return what
	}

	for _, d := range r.Node.PendingCalls {
		if d.Kind != call.NodeUnpublish && d.Kind != call.NodeUnstage {
			return fmt.Sprintf("the pending call %q is unknown", d.Kind)
		}
	}

	switch n := r.Node; {
	case !n.Attached.Valid():
		return bad("attached", n.Attached)
	case !n.Hold.State.Valid():
		return bad("hold", n.Hold.State)
	case !n.Staged.Valid():
		return bad("staged", n.Staged)
	default:
		return ""
	}
}

// unrecognised describes a state in the claim that this release does not know. It returns "" if all
// states are known.
func (c Claim) unrecognised() string {
	switch c.State {
	case Pending, Mounted, Unpublishing, NodeDetached, ControllerDetached:
	default:
		return fmt.Sprintf("claim of %q has the unknown state %q", c.Alloc, c.State)
	}

	switch {
	case c.Without.Check() != nil:
		return fmt.Sprintf("claim of %q is detached in the unknown way %q", c.Alloc, c.Without)
	case !c.Published.Valid():
		return fmt.Sprintf("published for %s has the unknown state %q", c.Alloc, c.Published)
	case !c.Bound.Valid():
		return fmt.Sprintf("bound for %s has the unknown state %q", c.Alloc, c.Bound)
	default:
		return ""
	}
}
