package volume

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Side is what is known of one thing that a call makes and another undoes: an
// attachment, a staging, a publication, a bind.
type Side string

// The four things that can be known of a side. The zero value is Absent.
const (
	// Absent: it was never made, or its undoing was seen to succeed.
	Absent Side = ""
	// Unknown: the making call may have run, because the agent died about
	// then. Making it again is right, and so is undoing it.
	Unknown Side = "unknown"
	// Failed: the making call ended in an error, or an undoing call did. It
	// may be there all the same, and is undone before it is made again.
	Failed Side = "failed"
	// Present: made and verified.
	Present Side = "present"
)

// Valid reports whether s is one of the four.
func (s Side) Valid() bool {
	return s == Absent || s == Unknown || s == Failed || s == Present
}

// String names the side, the zero value too.
func (s Side) String() string {
	if s == Absent {
		return "absent"
	}
	return string(s)
}

// MountIdentity tells one mount from any other: what is mounted, and which
// mounting of it. Two identities of the same mount are equal.
type MountIdentity struct {
	Namespace uint64 `json:"ns"`           // inode of the mount namespace
	Boot      string `json:"boot"`         // boot id
	Device    string `json:"dev"`          // "major:minor" of the file system
	Root      string `json:"root"`         // path of the mount's root in it
	FSType    string `json:"fs"`           // kernel's name of the file system type
	ID        uint64 `json:"id,omitempty"` // unique mount id; 0 before Linux 6.8
	// Backing is the file behind the loop device whose node is mounted; empty for
	// everything else. A loop device can be detached, and its number given to
	// another file, while its node stays where it is.
	Backing string `json:"backing,omitempty"`
}

// Shows reports whether a mount, which may be another one, shows the same directory of the same
// file system: a plugin may have mounted it twice. A FUSE file system gets another device number
// each time it is mounted, so its type has to do.
func (m MountIdentity) Shows(o MountIdentity) bool {
	same := m.Boot == o.Boot && m.Device == o.Device && m.Root == o.Root && m.FSType == o.FSType
	again := m.FUSE() && m.FSType == o.FSType && m.Root == o.Root
	return same || again
}

// FUSE reports whether a process serves the mount, which breaks when that ends.
func (m *MountIdentity) FUSE() bool {
	return m != nil && (m.FSType == "fuse" || m.FSType == "fuseblk")
}

// ClaimState is where a claim is in its life.
type ClaimState string

// Claim states, in order. ReadyToFree is never stored: a claim that gets there
// is deleted by the same change.
const (
	Pending            ClaimState = "pending"
	Taken              ClaimState = "taken"
	Unpublishing       ClaimState = "unpublishing"
	NodeDetached       ClaimState = "node-detached"
	ControllerDetached ClaimState = "controller-detached"
)

// Claim is one alloc's right to a volume and how far it got.
type Claim struct {
	Alloc     string         `json:"alloc"`
	Seq       uint64         `json:"seq"`    // order of admission on this volume
	Wanted    bool           `json:"wanted"` // false once its release was asked for
	State     ClaimState     `json:"state"`
	ReadOnly  bool           `json:"read_only,omitempty"`
	Mode      Capability     `json:"mode"`
	Owner     Owner          `json:"owner"`
	Since     time.Time      `json:"since"`
	Target    string         `json:"target"`              // stored, never derived again
	Published Side           `json:"published,omitempty"` // NodePublishVolume at Target
	Mount     *MountIdentity `json:"mount,omitempty"`     // at Target, when Published is Present
	At        string         `json:"at,omitempty"`        // where the user wants it bound as well
	Bound     Side           `json:"bound,omitempty"`     // the bind at At
	// AtFlags are mount options of the bind alone, as AtFlags joins them.
	AtFlags string `json:"at_flags,omitempty"`
	// AtWritable leaves At as it is while nothing is mounted there.
	AtWritable bool           `json:"at_writable,omitempty"`
	BoundMount *MountIdentity `json:"bound_mount,omitempty"`
	// Adopted is set on a claim that was rebuilt from what is mounted, after
	// the state database was lost. It counts as a writer.
	Adopted bool `json:"adopted,omitempty"`
	// Own is who shall own the volume's root. Owned is set once that is so of the
	// mount on record.
	Own   Ownership `json:"own,omitzero"`
	Owned bool      `json:"owned,omitempty"`
	// Without is set by a release that does not ask the plugin.
	Without Without `json:"without,omitempty"`
}

// FUSE reports whether a process serves the claim's mount.
func (c Claim) FUSE() bool { return c.Mount.FUSE() || c.BoundMount.FUSE() }

// Path is where the alloc finds the volume.
func (c Claim) Path() string {
	if c.At != "" {
		return c.At
	}
	return c.Target
}

// Private reports whether only root needs to reach the claim's target: the alloc finds the
// volume at a directory of its own, or in a container.
func (c Claim) Private() bool {
	return c.At != "" || c.Owner.Kind == OwnerRuntime || filepath.Base(filepath.Dir(c.Target)) == PrivateDir
}

// InPlace reports whether what is seen at the claim's target, and where the user
// wants it, are the mounts that were made for it.
func (c Claim) InPlace(target, bind Sight) bool {
	if c.Published != Present || !c.owned() || target.Seen != SeenMount || !target.Is(c.Mount) {
		return false
	}
	return c.At == "" || c.Bound == Present && bind.Seen == SeenMount && bind.Is(c.BoundMount)
}

// Mode is what the claims of a volume share while any is held.
type Mode struct {
	Capability
	FSType     string   `json:"fs_type,omitempty"`
	MountFlags []string `json:"mount_flags,omitempty"`
	// Group is the gid, in digits, that a plugin with VOLUME_MOUNT_GROUP mounts for.
	Group string `json:"group,omitempty"`
}

// Watch is the late effect that a call of uncertain outcome may still have. The call
// may mount something at Path or, with Undo, may take away what is mounted there next.
// With Attachment it may attach the volume to this node or, with Undo, detach it.
type Watch struct {
	Path       string `json:"path"`            // empty with Attachment
	Alloc      string `json:"alloc,omitempty"` // empty for the staging path
	Undo       bool   `json:"undo,omitempty"`
	Attachment bool   `json:"attachment,omitempty"`
}

// The late effects on an attachment: of a ControllerPublishVolume, and of a
// ControllerUnpublishVolume.
var (
	lateAttach = Watch{Attachment: true}
	lateDetach = Watch{Attachment: true, Undo: true}
)

// NodeSide is what was done with the volume on this host.
type NodeSide struct {
	Mode *Mode `json:"mode,omitempty"` // set by the first claim, cleared by the last release

	// Uses says which sides calls may be made on. It is durable before the
	// first such call, so that a crash leaves no doubt about the others.
	Uses Uses `json:"uses,omitzero"`

	Attached         Side              `json:"attached,omitempty"` // ControllerPublishVolume
	NodeID           string            `json:"node_id,omitempty"`  // that it was attached to
	PublishContext   map[string]string `json:"publish_context,omitempty"`
	AttachedReadOnly bool              `json:"attached_readonly,omitempty"`
	// Proven is set when nothing on the host was seen to use the device. It
	// is needed before ControllerUnpublishVolume and is not kept over a restart.
	Proven bool `json:"-"`

	Staged      Side           `json:"staged,omitempty"` // NodeStageVolume
	StagingPath string         `json:"staging_path,omitempty"`
	Mount       *MountIdentity `json:"mount,omitempty"` // nil if staging mounted nothing
	// Boot is the one in which something was last staged or published here.
	// What a look cannot tell, and the names of devices, hold for it alone.
	Boot string `json:"boot,omitempty"`
	// Devices are the block devices seen under this volume's mounts; the proof
	// of unmount asks for them.
	Devices []Device `json:"devices,omitempty"`

	Watches []Watch `json:"watches,omitempty"`
	// Owed are calls that were skipped. They are made before the volume is
	// staged again, and before it is detached.
	Owed []Owed `json:"owed,omitempty"`
	// Unseen are mounts that were unmounted lazily since the plugin, and the
	// controller, were last told everything.
	Unseen []Unseen `json:"unseen,omitempty"`
	Seq    uint64   `json:"seq,omitempty"` // of the newest claim
}

// Uses names the optional sides of a volume's life: a plugin need not attach,
// and need not stage.
type Uses struct {
	Attach bool `json:"attach,omitempty"`
	Stage  bool `json:"stage,omitempty"`
}

// Record is all that is kept of a volume. It is a value: what changes it
// returns a new one and never writes through a map, slice or pointer of the
// old one.
type Record struct {
	Volume     Volume           `json:"volume"`
	Generation uint64           `json:"generation"` // grows by one a change
	Node       NodeSide         `json:"node"`
	Claims     map[string]Claim `json:"-"` // by alloc; stored under keys of their own
	// Guards are directories that were made to refuse writes while nothing of the volume
	// is mounted there, or are about to be: they are on record before.
	Guards []string `json:"guards,omitempty"`
	// GuardDirs say which directories those are, whatever their names become.
	GuardDirs []GuardedDir `json:"guard_dirs,omitempty"`
	// Debt marks what a forced deregister left: no volume any more, but
	// something to be undone. Nothing is done about it without its plugin.
	Debt bool `json:"-"`
}

// debtKey begins the key of a debt. No volume id holds a slash.
const debtKey = "debt/"

// Key names the record beyond doubt: a volume by its id, a debt by the storage
// volume, because the id may be another volume's by now.
func (r Record) Key() string {
	if !r.Debt {
		return r.Volume.ID
	}
	return debtKey + r.Volume.Driver + "\x00" + r.Volume.ExternalID
}

// DebtKey is the key of the debt of a storage volume; ParseDebtKey undoes it.
func DebtKey(driver, external string) string {
	return Record{Debt: true, Volume: Volume{Driver: driver, ExternalID: external}}.Key()
}

// ParseDebtKey says which storage volume's debt a key names, if it does.
func ParseDebtKey(key string) (driver, external string, ok bool) {
	rest, ok := strings.CutPrefix(key, debtKey)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "\x00")
}

// Ordered returns the claims, the oldest first.
func (r Record) Ordered() []Claim {
	return slices.SortedFunc(maps.Values(r.Claims), func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Alloc, b.Alloc))
	})
}

// Held reports whether anything of the volume is, or may be, on this host.
func (r Record) Held() bool {
	return r.left() || len(r.Node.Watches) > 0
}

// Unsettled reports whether, by a record as it was read after a crash, a call of the
// agent that died may still be at work on the volume.
func (r Record) Unsettled() bool {
	v := r.Volume
	return v.Provision != Provisioned || len(v.Modifying) > 0 || v.Expansion.Want > 0 || v.Expansion.nodeWants() || len(r.Node.Watches) > 0
}

// left is Held, less what may only come late.
func (r Record) left() bool {
	return len(r.Claims) > 0 || r.Node.Attached != Absent || r.Node.Staged != Absent || len(r.Node.Owed) > 0
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

// without returns the record less one claim; the last one takes the mode in
// force with it.
func (r Record) without(alloc string) Record {
	r.Claims = maps.Clone(r.Claims)
	delete(r.Claims, alloc)
	if len(r.Claims) == 0 {
		r.Node.Mode = nil
	}
	return r
}

// inBoot returns the record as it is for a step in a boot: what was known of
// devices in another one is void.
func (r Record) inBoot(boot string) Record {
	if r.Node.Boot != boot {
		r.Node.Boot, r.Node.Devices = boot, nil
	}
	return r
}

// Same reports whether two records are of one registration of one storage
// volume: an id may be given to another.
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

// watching returns the record with one more late effect to watch for.
func (r Record) watching(w Watch) Record {
	if !slices.Contains(r.Node.Watches, w) {
		r.Node.Watches = append(slices.Clone(r.Node.Watches), w)
	}
	return r
}
