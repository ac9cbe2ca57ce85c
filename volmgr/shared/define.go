package shared

import (
	"errors"
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Claimed is the value of an external key: the id of the volume that uses the storage.
type Claimed struct {
	Volume string `json:"volume"`
}

// Place contains the keys that decide about the definition of a volume.
type Place struct {
	Meta     Entry[Meta]
	Node     Entry[Node]
	Volume   Entry[Definition]
	Use      Entry[Use]
	Call     Entry[Call]
	External Entry[Claimed]
	Question Entry[Question]
	Hold     Entry[Hold]   // of the asking host
	Users    []Entry[User] // at most two of the users

	// Attaches reports whether the asking host knows that the volumes of a plugin need
	// ControllerPublishVolume. If it is nil, the host does not know it.
	Attaches func(pluginID string) bool

	// Doubt is set if an earlier transaction of the same change may have been executed.
	Doubt bool

	node, id, driver, external string
}

// PlaceReads returns the operations that read a Place.
func PlaceReads(node string, v volume.Volume) []Op {
	return []Op{
		Get(MetaKey), Get(NodeKey(node)), Get(VolumeKey(v.ID)), Get(UseKey(v.ID)), Get(CallKey(v.ID)),
		Get(ExternalKey(v.Driver, v.ExternalID)), Get(QuestionKey(v.Driver, v.ExternalID)), Get(HoldKey(node, v.ID)), GetSpan(Users(v.ID), readUsers),
	}
}

// ParsePlace decodes the results of the operations from PlaceReads.
func ParsePlace(node string, v volume.Volume, reads [][]KV) (Place, error) {
	p := Place{node: node, id: v.ID, driver: v.Driver, external: v.ExternalID}
	if len(reads) != len(PlaceReads(node, v)) {
		return p, volume.Errorf(volume.ErrInvalid, "etcd has answered %d reads of volume %q", len(reads), v.ID)
	}

	var errs []error
	p.Meta = entry[Meta](MetaKey, reads[0], &errs)
	p.Node = entry[Node](NodeKey(node), reads[1], &errs)
	p.Volume = entry[Definition](VolumeKey(v.ID), reads[2], &errs)
	p.Use = entry[Use](UseKey(v.ID), reads[3], &errs)
	p.Call = entry[Call](CallKey(v.ID), reads[4], &errs)
	p.External = entry[Claimed](ExternalKey(v.Driver, v.ExternalID), reads[5], &errs)
	p.Question = entry[Question](QuestionKey(v.Driver, v.ExternalID), reads[6], &errs)
	p.Hold = entry[Hold](HoldKey(node, v.ID), reads[7], &errs)
	for _, kv := range reads[8] {
		e, err := Decode[User](kv)
		p.Users, errs = append(p.Users, e), append(errs, err)
	}

	return p, errors.Join(errs...)
}

// txn returns a transaction that reads the place anew if a condition is false.
func (p Place) txn(compares []Compare, then ...Op) Txn {
	v := volume.Volume{ID: p.id, Driver: p.driver, ExternalID: p.external}
	compares = append([]Compare{Unchanged(p.Meta.KV), Unchanged(p.Node.KV)}, compares...)
	return Txn{If: compares, Then: then, Else: PlaceReads(p.node, v)}
}

// Define returns the transaction that adds a volume whose storage exists.
func (p Place) Define(who Asker, v volume.Volume) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	if p.Volume.Exists() {
		return Txn{}, volume.Errorf(volume.ErrRefused, "the cluster already has a volume %q", p.id).WithRemedy(remedy.Of(remedy.ShowVolume, p.id))
	}
	if err := p.checkUnique(); err != nil {
		return Txn{}, err
	}
	if err := p.checkBoot(Definition{Volume: v}); err != nil {
		return Txn{}, err
	}

	compares, external := p.claimStorage()
	compares = append(compares, Absent(p.Volume.Key), Unchanged(p.Use.KV))
	return p.txn(compares, append(external, p.put(Definition{Volume: v}), p.Use.Put(Use{Generation: p.Use.Value.Generation + 1}))...), nil
}

// put returns the operation that stores a definition.
func (p Place) put(d Definition) Op {
	d.Volume.Shared = true
	d.Attach = p.attach(d)
	d.Deleting = d.Volume.Provision == volume.Deleting
	return p.Volume.Put(d)
}

// attach reports whether the volume of a definition needs ControllerPublishVolume, as far as the cluster
// and this host know.
func (p Place) attach(d Definition) bool {
	return d.Attach || p.Attaches != nil && p.Attaches(d.Volume.PluginID)
}

// checkBoot refuses a change to "boot: trust-local" if the volume needs ControllerPublishVolume.
func (p Place) checkBoot(d Definition) error {
	if d.Volume.Boot == p.Volume.Value.Volume.Boot {
		return nil
	}

	v := d.Volume
	v.Shared = true
	return v.CheckBoot(plugin.Info{Caps: plugin.Caps{Attach: p.attach(d)}})
}

// claimStorage returns the operation that makes the volume the only one with its storage, and its
// condition. It returns nothing for a volume without an external id, whose storage does not exist
// yet.
func (p Place) claimStorage() ([]Compare, []Op) {
	if p.external == "" {
		return nil, nil
	}
	return []Compare{Unchanged(p.External.KV)}, []Op{p.External.Put(Claimed{Volume: p.id})}
}

// notice returns the operation that tells the hosts that use the volume about a change. It returns
// nothing if no host uses the volume.
func (p Place) notice() []Op {
	if p.Use.Value.Access == "" {
		return nil
	}
	return []Op{Put(NoticeKey(p.id), Entry[Notice]{}.Encode(Notice{By: p.node}))}
}

// removed returns the operation that tells all hosts that the volume is removed from the cluster.
func (p Place) removed(how volume.EventType) Op {
	return Put(RemovedKey, Entry[Removed]{}.Encode(Removed{Volume: p.id, By: p.node, How: how}))
}

// checkUnique refuses storage that another volume of the cluster uses.
func (p Place) checkUnique() error {
	if p.external == "" || !p.External.Exists() || p.External.Value.Volume == p.id {
		return nil
	}

	other := p.External.Value.Volume
	return volume.Errorf(volume.ErrStorageTaken, "external_id %q of driver %s is already registered in the cluster as volume %q; one storage volume has one id",
		p.external, p.driver, other).WithRemedy(remedy.Of(remedy.ShowVolume, other))
}

// Redefine returns the transaction that replaces the definition of a volume, if neither the
// definition nor the use of the volume has changed since it was read.
func (p Place) Redefine(who Asker, d Definition) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	if !p.Volume.Exists() {
		return Txn{}, missing(p.id)
	}
	if err := p.checkBoot(d); err != nil {
		return Txn{}, err
	}

	return p.txn([]Compare{Unchanged(p.Volume.KV), Unchanged(p.Use.KV)}, append(p.notice(), p.put(d))...), nil
}

// Undefine returns the transaction that removes a volume from the cluster. It refuses a volume that
// a host uses, or for which a call is in flight. The call of the asking host with the given operation
// ends in the same transaction.
func (p Place) Undefine(who Asker, operation string) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	if err := p.checkUnused(who, operation); err != nil {
		return Txn{}, err
	}

	compares := []Compare{Unchanged(p.Volume.KV), Unchanged(p.Use.KV), Unchanged(p.Call.KV), NoneIn(Users(p.id))}
	how := volume.EventDeregistered
	if p.Volume.Value.Deleting {
		how = volume.EventDeleted
	}
	then := []Op{Delete(p.Volume.Key), Delete(p.Use.Key), Delete(p.Call.Key), Delete(NoticeKey(p.id)), p.removed(how)}
	if p.External.Exists() && p.External.Value.Volume == p.id {
		compares, then = append(compares, Unchanged(p.External.KV)), append(then, Delete(p.External.Key))
	}

	return p.txn(compares, then...), nil
}

// checkUnused refuses a volume that a host uses, or for which a call other than the given one is in
// flight. A call of an earlier agent of the asking host may still have an effect; the host ends it
// after its deadline.
func (p Place) checkUnused(who Asker, operation string) error {
	switch {
	case !p.Volume.Exists():
		return missing(p.id)
	case p.Call.Exists() && !p.announced(who, operation):
		return p.busy()
	default:
		return p.Shown().Unused()
	}
}

// busy returns the error for a volume for which another host makes a call.
func (p Place) busy() error {
	c := p.Call.Value
	return volume.Errorf(volume.ErrRefused, "host %q is calling %s for volume %q since %s", c.Executor, c.Call, p.id, c.Since.UTC().Format(time.RFC3339)).
		WithRemedy(remedy.Of(remedy.ShowVolume, p.id))
}

// Shown returns the volume as the parts of the agent outside of the cluster see it.
func (p Place) Shown() volume.SharedVolume {
	d, use := p.Volume.Value, p.Use.Value
	out := volume.SharedVolume{Volume: d.Shown(), Operation: d.Operation, Access: use.Access}
	if use.Holder != "" {
		out.Users = append(out.Users, use.Holder)
	}
	for _, u := range p.Users {
		if node, ok := LastID(u.Key); ok {
			out.Users = append(out.Users, node)
		}
	}
	for _, r := range use.Rivals {
		out.Users = append(out.Users, r.Host)
	}

	return out
}

// Shown returns the volume as the parts of the agent outside of the cluster see it.
func (d Definition) Shown() volume.Volume {
	v := d.Volume
	v.Shared = true
	if d.Deleting {
		v.Provision = volume.Deleting
	}
	return v
}

func missing(id string) error {
	return volume.Errorf(volume.ErrNotFound, "the cluster has no volume %q", id).WithHint("volctl volume list")
}
