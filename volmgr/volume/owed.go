package volume

import (
	"fmt"
	"slices"
	"strings"
)

// Without says how far a release may go that does not ask the plugin. Each
// goes as far as those before it, and then one further.
type Without string

// How a release goes. The zero value is the way through the plugin.
const (
	WithPlugin Without = ""
	ByUmount   Without = "umount" // umount(2); it fails while anybody uses the mount
	ByForce    Without = "force"  // then with MNT_FORCE, which gives up what waits on the storage
	ByLazy     Without = "lazy"   // then with MNT_DETACH: out of sight, and alive until its last user goes
)

// ladder are the ways without the plugin, the gentlest first.
var ladder = []Without{ByUmount, ByForce, ByLazy}

// Check refuses a word that is none of the three.
func (w Without) Check() error {
	if w != WithPlugin && !slices.Contains(ladder, w) {
		return Errorf(ErrInvalid, "unknown way to unmount %q", string(w)).WithHint("one of umount, force, lazy")
	}
	return nil
}

// Steps are what w allows, in order; none for the way through the plugin.
func (w Without) Steps() []Without { return ladder[:slices.Index(ladder, w)+1] }

// Stronger is the next way; the zero value after the last.
func (w Without) Stronger() Without {
	if i := slices.Index(ladder, w); i+1 < len(ladder) {
		return ladder[i+1]
	}
	return WithPlugin
}

// Owed is a call to the plugin that was skipped, because the host undid by
// itself what the call undoes. It is made once the plugin is ready.
type Owed struct {
	Kind  Kind   `json:"kind"` // NodeUnpublish or NodeUnstage
	Path  string `json:"path"`
	Alloc string `json:"alloc,omitempty"` // whose target it was
	// Mount is what was mounted at Path. Only its like may be unmounted by the call. It is
	// zero if that is not known.
	Mount MountIdentity `json:"mount,omitzero"`
}

// Unseen is a mount that was taken out of sight and may live on.
type Unseen struct {
	Path  string   `json:"path"`
	Users []string `json:"users,omitempty"` // who used it then, in words
}

// ReleaseWithout is Release by a person who does not want to wait for the
// plugin. It may be asked for on top of a release that is under way; then the
// claim goes as far as the last one asked for.
func ReleaseWithout(r Record, alloc string, how Without) (Record, error) {
	r, err := Release(r, alloc)
	if c, ok := r.Claims[alloc]; err == nil && ok && how != WithPlugin && c.Without != how {
		c.Without = how
		r = r.with(c)
	}
	return r, err
}

// Debts are what is still to be told to the plugin of a volume that no claim
// is held on any more, or whose claim was released without it, in words.
func (r Record) Debts() []string {
	var words []string
	for _, d := range r.Node.Owed {
		s := string(d.Kind) + " " + d.Path
		if d.Alloc != "" {
			s += fmt.Sprintf(" (%q)", d.Alloc)
		}
		words = append(words, s)
	}
	if len(r.Claims) == 0 && r.Node.Attached != Absent {
		words = append(words, fmt.Sprintf("%s from node %q", ControllerUnpublish, r.Node.NodeID))
	}
	return words
}

// owes names the calls alone, each once.
func (r Record) owes() string {
	var kinds []string
	for _, d := range r.Debts() {
		kind, _, _ := strings.Cut(d, " ")
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(kinds, ", ")
}

// Left says what stays behind on this host, or at the plugin, after a release
// that did not ask the plugin.
func (r Record) Left() []string {
	var left []string
	for _, u := range r.Node.Unseen {
		left = append(left, u.words())
	}
	for _, d := range r.Debts() {
		left = append(left, fmt.Sprintf("plugin %q is still to be told: %s", r.Volume.PluginID, d))
	}
	return left
}

// words say what is out of sight, and who used it.
func (u Unseen) words() string {
	s := u.Path + " was unmounted lazily: whoever has it open goes on using it"
	if len(u.Users) > 0 {
		s += " (" + strings.Join(u.Users, "; ") + ")"
	}
	return s
}

// owing returns the record with one more call to make, which undid a mount if made is set.
func (r Record) owing(d Owed, made *MountIdentity) Record {
	if made != nil {
		d.Mount = *made
	}
	if !slices.Contains(r.Node.Owed, d) {
		r.Node.Owed = append(slices.Clone(r.Node.Owed), d)
	}
	return r
}

// paid returns the record less the calls that one that succeeded stands for.
func (r Record) paid(k Kind, path string) Record {
	is := func(d Owed) bool { return d.Kind == k && d.Path == path }
	if !slices.ContainsFunc(r.Node.Owed, is) {
		return r
	}
	r.Node.Owed = slices.DeleteFunc(slices.Clone(r.Node.Owed), is)
	return r.cleared()
}

// cleared forgets what only matters while something is still to be undone.
func (r Record) cleared() Record {
	n := r.Node
	if len(n.Owed) == 0 && n.Attached == Absent {
		r.Node.Unseen, n.Unseen = nil, nil
	}
	if len(r.Claims) == 0 && n.Attached == Absent && n.Staged == Absent {
		r.Node = NodeSide{
			Watches: n.Watches, StagingPath: n.StagingPath, Seq: n.Seq, Owed: n.Owed, Unseen: n.Unseen,
		}
	}
	return r
}

// owesAt reports whether a call is still to be made for a path.
func (r Record) owesAt(path string) bool {
	return slices.ContainsFunc(r.Node.Owed, func(d Owed) bool { return d.Path == path })
}

// owed makes the calls that were skipped: the targets' before the staging
// path's, as ever.
func (p *planner) owed() bool {
	if p.leaving() {
		return false // whoever does not wait for the plugin does not wait for this either
	}
	for _, d := range p.r.Node.Owed {
		a := Action{Kind: d.Kind, Alloc: d.Alloc, Path: d.Path, Owed: true}
		if d.Kind == NodeUnpublish && p.try(a) || d.Kind == NodeUnstage && p.tryUnstage(a) {
			return true
		}
	}
	return false
}

// leaving reports whether the last claim goes without the plugin.
func (p *planner) leaving() bool { return len(p.claims) == 1 && p.claims[0].Without != WithPlugin }

// unpublishForOwed undoes what a crash left in doubt and would keep an owed
// unstage from being made. Why calls could not be made otherwise stands already.
func (p *planner) unpublishForOwed() bool {
	if !slices.ContainsFunc(p.r.Node.Owed, func(d Owed) bool { return d.Kind == NodeUnstage }) {
		return false
	}
	return slices.ContainsFunc(p.claims, p.unpublish)
}

// tryUnstage chooses an unstage, unless a target is, or for all that the plugin
// was told may be, still published.
func (p *planner) tryUnstage(a Action) bool {
	owed := func(d Owed) bool { return d.Kind == NodeUnpublish }
	if p.anyMounted() || a.RPC() && slices.ContainsFunc(p.r.Node.Owed, owed) {
		return false
	}
	return p.try(a)
}

// applyUnmount records what the host undid with no call to the plugin.
func applyUnmount(r Record, a Action, out Outcome) Record {
	if out.Err != nil {
		return r // it is tried again, or goes another way
	}
	if out.Unseen != nil {
		r.Node.Unseen = append(slices.Clone(r.Node.Unseen), *out.Unseen)
	}
	r.Node.Proven = false
	if a.Alloc == "" {
		made := r.Node.Mount
		r.Node.Staged, r.Node.Mount = Absent, nil
		return r.owing(Owed{Kind: NodeUnstage, Path: a.Path}, made)
	}
	c, ok := r.Claims[a.Alloc]
	if !ok || c.Target != a.Path {
		return r
	}
	made := c.Mount
	c.Published, c.Mount = Absent, nil
	return r.with(c).owing(Owed{Kind: NodeUnpublish, Path: a.Path, Alloc: a.Alloc}, made)
}
