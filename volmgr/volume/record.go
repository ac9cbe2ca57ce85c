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
)

// ClaimState is the stage of a claim's life.
type ClaimState string

// The claim states, in order. The state ready-to-free of the API is never stored: the change
// that leads to it deletes the claim.
const (
	Pending            ClaimState = "pending"
	Mounted            ClaimState = "mounted"
	Unpublishing       ClaimState = "unpublishing"
	NodeDetached       ClaimState = "node-detached"
	ControllerDetached ClaimState = "controller-detached"
)

// storedMounted is the name of Mounted on disk, which is Nomad's.
const storedMounted = "taken"

// MarshalText returns the name of the state on disk.
func (s ClaimState) MarshalText() ([]byte, error) {
	if s == Mounted {
		return []byte(storedMounted), nil
	}
	return []byte(s), nil
}

// UnmarshalText reads the name of the state on disk. It accepts unknown names.
func (s *ClaimState) UnmarshalText(text []byte) error {
	*s = ClaimState(text)
	if *s == storedMounted {
		*s = Mounted
	}
	return nil
}

// Claim is one alloc's right to a volume, with its progress.
type Claim struct {
	Alloc  string     `json:"alloc"`
	Seq    uint64     `json:"seq"`    // order of admission on this volume
	Wanted bool       `json:"wanted"` // false once the claim is to end
	State  ClaimState `json:"state"`
	Terms
	Since     time.Time      `json:"since"`
	Target    string         `json:"target"`              // stored once and never computed again
	Published Side           `json:"published,omitempty"` // NodePublishVolume at Target
	Mount     *MountIdentity `json:"mount,omitempty"`     // at Target, if Published is Present
	Bound     Side           `json:"bound,omitempty"`     // the bind mount at At

	BoundMount *MountIdentity `json:"bound_mount,omitempty"`

	// Adopted is set on a claim that was rebuilt from its mounts after the state database was lost.
	// It counts as a writer.
	Adopted bool `json:"adopted,omitempty"`

	// Owned is set once the root of the recorded mount has the ownership that Own asks for.
	Owned bool `json:"owned,omitempty"`

	// Without is set if the claim is detached without calls to the plugin.
	Without Without `json:"without,omitempty"`
}

// FUSE reports whether a process serves the claim's mount.
func (c Claim) FUSE() bool { return c.Mount.FUSE() || c.BoundMount.FUSE() }

// Path returns the path at which the alloc uses the volume.
func (c Claim) Path() string {
	if c.At != "" {
		return c.At
	}
	return c.Target
}

// Private reports whether only root needs access to the claim's target. That is so if the alloc
// uses the volume at an own directory or in a container.
func (c Claim) Private() bool {
	return c.At != "" || c.Owner.Kind == OwnerRuntime || filepath.Base(filepath.Dir(c.Target)) == PrivateDir
}

// InPlace reports whether target and bind show the mounts that were made for the claim. They are
// the sights of the claim's target and of its own directory.
func (c Claim) InPlace(target, bind Sight) bool {
	if c.Published != Present || !c.owned() || target.Seen != SeenMount || !target.Is(c.Mount) {
		return false
	}
	return c.At == "" || c.Bound == Present && bind.Seen == SeenMount && bind.Is(c.BoundMount)
}

// Mode is the access mode and the mount options that all claims of a volume share.
type Mode struct {
	call.Capability
	FSType     string   `json:"fs_type,omitempty"`
	MountFlags []string `json:"mount_flags,omitempty"`
	// Group is the gid, in digits, that a plugin with VOLUME_MOUNT_GROUP mounts the volume for.
	Group string `json:"group,omitempty"`
}

// Watch is the expectation of a late effect, after a call whose result is unknown. The call may
// still mount something at Path or, with Undo, unmount the next mount there. With Attachment, the
// call may still connect the volume to this node or, with Undo, disconnect it.
type Watch struct {
	Path       string `json:"path"`            // empty with Attachment
	Alloc      string `json:"alloc,omitempty"` // empty for the staging path
	Undo       bool   `json:"undo,omitempty"`
	Attachment bool   `json:"attachment,omitempty"`
}

// The late effects of ControllerPublishVolume and ControllerUnpublishVolume.
var (
	lateAttach = Watch{Attachment: true}
	lateDetach = Watch{Attachment: true, Undo: true}
)

// NodeSide is the state of the volume on this host.
type NodeSide struct {
	Mode *Mode `json:"mode,omitempty"` // set by the first claim, cleared when the last one ends

	// Uses names the sides for which calls may be made. It is durable before the first such call,
	// so after a crash the agent knows that the other sides are absent.
	Uses Uses `json:"uses,omitzero"`

	Attached         Side              `json:"attached,omitempty"` // ControllerPublishVolume
	NodeID           string            `json:"node_id,omitempty"`  // of that ControllerPublishVolume
	PublishContext   map[string]string `json:"publish_context,omitempty"`
	AttachedReadOnly bool              `json:"attached_readonly,omitempty"`

	// Proven is set after a proof of unmount. ControllerUnpublishVolume needs it. It is not kept
	// over a restart.
	Proven bool `json:"-"`

	Staged      Side           `json:"staged,omitempty"` // NodeStageVolume
	StagingPath string         `json:"staging_path,omitempty"`
	Mount       *MountIdentity `json:"mount,omitempty"` // nil if staging mounted nothing

	// Boot is the boot in which something was last staged or published on this host. Device names
	// are valid only in that boot, and so is state that the agent cannot observe.
	Boot string `json:"boot,omitempty"`

	// Devices are the block devices under this volume's mounts. The proof of unmount checks them.
	Devices []Device `json:"devices,omitempty"`

	Watches []Watch `json:"watches,omitempty"`

	// This field holds the pending calls. The agent makes them before it stages the volume again,
	// and before ControllerUnpublishVolume.
	PendingCalls []PendingCall `json:"owed,omitempty"`

	// Unseen holds the mounts that were unmounted lazily and may still be in use. The list is
	// cleared once the plugin and the controller have been told everything.
	Unseen []Unseen `json:"unseen,omitempty"`
	Seq    uint64   `json:"seq,omitempty"` // number of the newest claim
}

// Uses names the optional sides of a volume's life. Some plugins need no ControllerPublishVolume,
// and some need no staging.
type Uses struct {
	Attach bool `json:"attach,omitempty"`
	Stage  bool `json:"stage,omitempty"`
}

// Record is everything that the agent stores about a volume. It is a value: a function that changes
// it returns a new record. It never writes through a map, slice or pointer of the old one.
type Record struct {
	Volume     Volume           `json:"volume"`
	Generation uint64           `json:"generation"` // grows by one with each change
	Node       NodeSide         `json:"node"`
	Claims     map[string]Claim `json:"-"` // by alloc; stored under separate keys

	// Guards are the directories that refuse writes while no mount of the volume is there. A
	// directory is recorded before its guard is set.
	Guards []string `json:"guards,omitempty"`

	// GuardDirs identify these directories independently of their names.
	GuardDirs []GuardedDir `json:"guard_dirs,omitempty"`

	// This field is set on the record that a forced deregister keeps. The volume is forgotten, but
	// its storage has pending calls. They wait until the plugin is ready.
	Leftover bool `json:"-"`
}

// leftoverKey is the prefix of the key of such a record. No volume id contains a slash.
const leftoverKey = "debt/"

// Key returns the unique key of the record. It is the volume id. After a forced deregister, it is
// made from the driver and the external id, because the volume id may belong to another volume by
// now.
func (r Record) Key() string {
	if !r.Leftover {
		return r.Volume.ID
	}
	return leftoverKey + r.Volume.Driver + "\x00" + r.Volume.ExternalID
}

// LeftoverKey returns the key of the pending calls of a deregistered volume. ParseLeftoverKey reverses it.
func LeftoverKey(driver, external string) string {
	return Record{Leftover: true, Volume: Volume{Driver: driver, ExternalID: external}}.Key()
}

// ParseLeftoverKey returns the storage volume that a key of LeftoverKey names. ok is false for other keys.
func ParseLeftoverKey(key string) (driver, external string, ok bool) {
	rest, ok := strings.CutPrefix(key, leftoverKey)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "\x00")
}

// Ordered returns the claims, oldest first.
func (r Record) Ordered() []Claim {
	return slices.SortedFunc(maps.Values(r.Claims), func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Alloc, b.Alloc))
	})
}

// Held reports whether anything of the volume is, or may be, on this host.
func (r Record) Held() bool {
	return r.left() || len(r.Node.Watches) > 0
}

// Unsettled reports whether a call of an agent that died may still be at work on the volume. It
// expects a record as it was read after the crash.
func (r Record) Unsettled() bool {
	v := r.Volume
	return v.Provision != Provisioned || len(v.Modifying) > 0 || v.Expansion.Want > 0 || v.Expansion.nodeWants() || len(r.Node.Watches) > 0
}

// left is Held without the late effects that are only expected.
func (r Record) left() bool {
	return len(r.Claims) > 0 || r.Node.Attached != Absent || r.Node.Staged != Absent || len(r.Node.PendingCalls) > 0
}

// with returns the record with one claim replaced.
func (r Record) with(c Claim) Record {
	r.Claims = maps.Clone(r.Claims)
	if r.Claims == nil {
		r.Claims = map[string]Claim{}
	}
	r.Claims[c.Alloc] = c
	return r
}

// without returns the record without one claim. When the last claim is removed, the mode is cleared
// too.
func (r Record) without(alloc string) Record {
	r.Claims = maps.Clone(r.Claims)
	delete(r.Claims, alloc)
	if len(r.Claims) == 0 {
		r.Node.Mode = nil
	}
	return r
}

// inBoot returns the record prepared for a step in the given boot. It discards the devices that
// were seen in another boot.
func (r Record) inBoot(boot string) Record {
	if r.Node.Boot != boot {
		r.Node.Boot, r.Node.Devices = boot, nil
	}
	return r
}

// Same reports whether two records describe the same registration of the same storage volume. The
// id alone does not show that, because it can be used again for another volume.
func (r Record) Same(o Record) bool {
	a, b := r.Volume, o.Volume
	return a.Driver == b.Driver && a.ExternalID == b.ExternalID && a.RegisteredAt.Equal(b.RegisteredAt)
}

// unwatched returns the record without the watches that drop selects.
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

// with adds the sides that a plugin needs to those that the volume already uses.
func (u Uses) with(i PluginInfo) Uses {
	return Uses{Attach: u.Attach || i.Caps.Attach, Stage: u.Stage || i.Caps.Stage}
}

// Check verifies the conditions that Admit, Detach and Apply keep true for every record. It is for
// tests and for debugging. The agent uses a record even if it fails this check.
func (r Record) Check() error {
	var errs []error
	unless := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}

	bad := r.unrecognised()
	unless(bad == "", "%s", bad)
	unless((r.Node.Mode != nil) == (len(r.Claims) > 0), "it has %d claims, and a mode is in force: %t", len(r.Claims), r.Node.Mode != nil)
	unless(r.Node.Mount == nil || r.Node.Staged != Absent, "it has a staged mount and is not staged")
	unless(r.Node.Staged == Absent || r.Node.StagingPath != "", "it is staged nowhere")
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

// unrecognised describes a state of the record that this release does not know, or returns "".
func (r Record) unrecognised() string {
	bad := func(what string, s Side) string { return fmt.Sprintf("%s has the unknown state %q", what, s) }
	oldest, what := Claim{}, ""
	for _, c := range r.Claims { // not sorted, because there may be thousands
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
			return fmt.Sprintf("the unknown call %q is owed", d.Kind)
		}
	}

	switch n := r.Node; {
	case !n.Attached.Valid():
		return bad("attached", n.Attached)
	case !n.Staged.Valid():
		return bad("staged", n.Staged)
	default:
		return ""
	}
}

// unrecognised describes a state of the claim that this release does not know, or returns "".
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
