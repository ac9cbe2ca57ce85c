package provision

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Cluster keeps the definitions of the volumes that the hosts of a cluster share. Every method
// returns an ErrPluginUnavailable if the cluster is not reachable.
type Cluster interface {
	Definitions
	StorageCalls
	Sharing
}

// Definitions reads and changes definitions.
type Definitions interface {
	// Look returns a volume. The result ok is false if the cluster has no such volume.
	Look(ctx context.Context, id string) (v volume.SharedVolume, ok bool, err error)
	// Define adds a volume. It refuses a volume or a storage volume that the cluster already has.
	Define(ctx context.Context, v volume.Volume) error
	// Undefine removes a volume. It refuses a volume that a host uses, or for which a call is in
	// flight. The call of this host with the given operation ends.
	Undefine(ctx context.Context, was volume.SharedVolume, operation string) error
	// Redefine changes the definition of a volume. It may call fn several times. If fn returns
	// false, nothing changes.
	Redefine(ctx context.Context, id string, fn func(volume.SharedVolume) (volume.Volume, bool, error)) (volume.SharedVolume, error)
}

// StorageCalls announces the controller calls for shared volumes. While a call is announced, no other
// host makes one for the volume.
type StorageCalls interface {
	// ClusterID returns the id of the cluster.
	ClusterID() string
	// BeginCall announces a call, and stores the definition with its intent.
	BeginCall(ctx context.Context, c volume.StorageCall, fn func(had volume.SharedVolume, ok bool) (volume.Volume, error)) (volume.SharedVolume, error)
	// EndCall ends a call, and stores its result. If external is not empty, it becomes the external
	// id of the volume, and EndCall refuses an external id that another volume has.
	EndCall(ctx context.Context, c volume.StorageCall, external string, fn func(volume.Volume) volume.Volume) (volume.SharedVolume, error)
	// LeaveCall ends a call of unknown outcome after its deadline.
	LeaveCall(c volume.StorageCall)
}

// Sharing moves volumes between the scopes host and shared.
type Sharing interface {
	// Fetch makes sure that this host has a record of a shared volume. A volume whose share or
	// unshare was interrupted gets the scope that the cluster shows.
	Fetch(ctx context.Context, id string) error
	// Move records that the scope of a volume is being changed, until end is called. Meanwhile,
	// Fetch changes no record of the volume.
	Move(id string) (end func())
	// Ask asks all other hosts whether they use the storage of a volume on their own. It refuses if
	// one does, or does not answer. EndQuestion removes the question.
	Ask(ctx context.Context, v volume.Volume) (question string, err error)
	EndQuestion(ctx context.Context, v volume.Volume, question string)
	// Share adds a volume of this host to the cluster, together with the hold of this host, if it
	// has one.
	Share(ctx context.Context, v volume.Volume, h *volume.Hold, nodeID, question string) (volume.Token, error)
	// Unshare removes a volume from the cluster, together with the hold of this host.
	Unshare(ctx context.Context, v volume.Volume, operation string) error
	// CheckOwn refuses storage that this host is about to use on its own, if the cluster has it.
	CheckOwn(ctx context.Context, v volume.Volume) error
}

// shared returns the definition of a shared volume. The result ok is false for a volume of this host,
// and for a volume that the cluster does not have.
func (s *common) shared(ctx context.Context, id string) (v volume.SharedVolume, ok bool, err error) {
	r, known, err := s.settleScope(ctx, id)
	switch {
	case err != nil || known && !r.Volume.Shared:
		return v, false, err
	case s.Cluster == nil:
		return v, false, s.checkMember(r.Volume)
	default:
		return s.Cluster.Look(ctx, id)
	}
}

// settleScope returns the record of a volume. If a share or unshare of the volume was interrupted,
// it first gives the record the scope that the cluster shows.
func (s *common) settleScope(ctx context.Context, id string) (r volume.Record, known bool, err error) {
	r, known = s.Store.Volume(id)
	if !r.Rescoping {
		return r, known, nil
	}

	words := volume.Errorf(volume.ErrRefused, "the scope of volume %q is being changed, or the change was interrupted", id).
		WithHint("this host finds out the scope when etcd answers; repeat the command then")
	if s.Cluster == nil {
		return r, known, words
	}
	if err := s.Cluster.Fetch(ctx, id); err != nil {
		return r, known, err
	}
	if r, known = s.Store.Volume(id); r.Rescoping {
		return r, known, words
	}
	return r, known, nil
}

// checkMember refuses a shared volume if this host belongs to no cluster.
func (s *common) checkMember(v volume.Volume) error {
	if !v.Shared || s.Cluster != nil {
		return nil
	}
	return volume.Errorf(volume.ErrRefused, "volume %q has the scope shared, and this host belongs to no cluster", v.ID).
		WithHint("add a section cluster to the configuration of volagent, or use scope: host")
}

// lookSpec returns the shared volume with the id of a volume file. It refuses a file whose scope
// differs. A file with scope host does not depend on the cluster.
func (s *common) lookSpec(ctx context.Context, spec volume.Volume) (v volume.SharedVolume, ok bool, err error) {
	if err := s.checkMember(spec); err != nil {
		return v, false, err
	}

	r, known := s.Store.Volume(spec.ID)
	if known && !r.Volume.Shared && spec.Shared {
		return v, false, volume.OtherScope(r.Volume)
	}

	v, ok, err = s.shared(ctx, spec.ID)
	switch {
	case err != nil && !spec.Shared && !known:
		return v, false, nil // a volume of this host does not wait for the cluster
	case err == nil && ok && !spec.Shared:
		return v, true, volume.OtherScope(v.Volume)
	case err == nil && !ok && known && r.Volume.Shared && r.Held():
		return v, false, volume.Errorf(volume.ErrRefused, "the cluster has no volume %q any more, and this host is still taking it down", spec.ID)
	default:
		return v, ok, err
	}
}

// scoped returns a volume file with its scope. A file without a scope has the scope of its plugin.
func (s *common) scoped(spec volume.Volume) volume.Volume {
	if spec.AnyScope && s.Plugins.View(spec.PluginID).Scope == plugin.ScopeShared {
		spec.Shared = true
	}
	return spec
}

// checkShareable refuses a volume that other hosts cannot use, or whose secrets other hosts cannot
// read.
func (s *common) checkShareable(v volume.Volume) error {
	if err := s.checkMember(v); err != nil {
		return err
	}

	view := s.Plugins.View(v.PluginID)
	if view.Scope == plugin.ScopeHost {
		return volume.Errorf(volume.ErrRefused, "volume %q cannot have the scope shared: plugin %q has scope: host, because its storage belongs to one host", v.ID, v.PluginID)
	}
	if why := v.OneHost(s.Node, view.Info.NodeID); why != "" {
		return volume.Errorf(volume.ErrRefused, "volume %q cannot have the scope shared: %s", v.ID, why)
	}

	if err := v.CheckBoot(view.Info); err != nil {
		return err
	}
	return s.checkReferences(v)
}

// checkScope refuses a volume file with a setting for shared volumes that the volume cannot have.
func (s *common) checkScope(v volume.Volume) error {
	if err := v.CheckTakeover(); err != nil {
		return err
	}
	return v.CheckBoot(s.Plugins.View(v.PluginID).Info)
}

// checkReferences refuses secrets that the definition of a shared volume may not use on this host.
func (s *common) checkReferences(v volume.Volume) error {
	for _, name := range slices.Sorted(maps.Keys(v.Secrets)) {
		err := s.Allowed(v.Secrets[name])
		if err == nil {
			continue
		}

		words := volume.Errorf(volume.ErrRefused, "secret %q of shared volume %q: %v", name, v.ID, err)
		if e := (*volume.Error)(nil); errors.As(err, &e) {
			words.Kind, words.Hint = e.Kind, e.Hint
		}
		return words
	}

	return nil
}

// checkOwn refuses storage for this host alone, if the cluster has it.
func (s *common) checkOwn(ctx context.Context, v volume.Volume) error {
	if s.Cluster == nil {
		return nil
	}
	return s.Cluster.CheckOwn(ctx, v)
}

// record returns a shared volume as a record. The record has the state of this host, if the host
// uses the volume.
func (s *common) record(v volume.SharedVolume) volume.Record {
	r, ok := s.Store.Volume(v.Volume.ID)
	if !ok || !r.Volume.Shared {
		return volume.Record{Volume: v.Volume}
	}

	own := r.Volume.Expansion
	r.Volume = v.Volume
	r.Volume.Expansion = own
	r.Volume.Expansion.Want = v.Volume.Expansion.Want
	return r
}

// sharedRecord returns a shared volume as a record, for a host that does not use the volume. The result ok
// is false for a volume that the cluster does not have.
func (s *common) sharedRecord(ctx context.Context, id string) (r volume.Record, ok bool, err error) {
	v, ok, err := s.shared(ctx, id)
	if err != nil || !ok {
		return r, false, err
	}
	return s.record(v), true, nil
}

// storageCall describes a new call for a shared volume.
func (s *common) storageCall(v volume.Volume, method call.Method) volume.StorageCall {
	return volume.StorageCall{
		ID: rand.Text(), Volume: v.ID, Driver: v.Driver, Call: method, Deadline: s.controllerTimeout(v),
	}
}

// uncertain reports whether a failed call may have had an effect. An earlier attempt may have had one
// even if this call was not sent.
func uncertain(err error) bool {
	var ce *volume.CallError
	return errors.As(err, &ce) && ce.Uncertain() && !ce.Unsent
}

// unsent reports whether the plugin has not received a failed call.
func unsent(err error) bool {
	var ce *volume.CallError
	return errors.As(err, &ce) && ce.Unsent
}

// same returns a volume unchanged.
func same(v volume.Volume) volume.Volume { return v }

// keep is the intent of a call that does not change the definition.
func keep(id string) func(volume.SharedVolume, bool) (volume.Volume, error) {
	return func(had volume.SharedVolume, ok bool) (volume.Volume, error) {
		if !ok {
			return had.Volume, noVolume(id)
		}
		return had.Volume, nil
	}
}

// bracket makes a call for a volume. It announces the call if the volume is shared.
func (s *common) bracket(ctx context.Context, v volume.Volume, method call.Method, fn func() error) error {
	if !v.Shared || s.Cluster == nil {
		return fn()
	}

	c := s.storageCall(v, method)
	if _, err := s.Cluster.BeginCall(ctx, c, keep(v.ID)); err != nil {
		return err
	}

	err := fn()
	if uncertain(err) {
		s.Cluster.LeaveCall(c)
		return err
	}
	_, ended := s.Cluster.EndCall(context.WithoutCancel(ctx), c, "", same)
	return errors.Join(err, ended)
}

// registering holds the storage volumes that this host is about to use on its own.
type registering struct {
	mu  sync.Mutex
	all map[string]string // volume ids by storage
}

// begin adds a volume, until the returned function is called.
func (r *registering) begin(v volume.Volume) (end func()) {
	key := volume.LeftoverKey(v.Driver, v.ExternalID)
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.all == nil {
		r.all = map[string]string{}
	}
	r.all[key] = v.ID
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.all, key)
	}
}

// find returns the id of the volume that is about to use a storage volume.
func (r *registering) find(driver, external string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[volume.LeftoverKey(driver, external)]
}
