package shared

import (
	"errors"

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

	node, id, driver, external string
}

// PlaceReads returns the operations that read a Place.
func PlaceReads(node string, v volume.Volume) []Op {
	return []Op{
		Get(MetaKey), Get(NodeKey(node)), Get(VolumeKey(v.ID)), Get(UseKey(v.ID)), Get(CallKey(v.ID)), Get(ExternalKey(v.Driver, v.ExternalID)),
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
	return p, errors.Join(errs...)
}

// txn returns a transaction that reads the place anew if a condition is false.
func (p Place) txn(compares []Compare, then ...Op) Txn {
	v := volume.Volume{ID: p.id, Driver: p.driver, ExternalID: p.external}
	compares = append([]Compare{Unchanged(p.Meta.KV), Unchanged(p.Node.KV)}, compares...)
	return Txn{If: compares, Then: then, Else: PlaceReads(p.node, v)}
}

// Define returns the transaction that adds a volume. A volume whose storage does not exist yet has
// no external id, and gets it by Redefine.
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

	v.Shared = true
	compares := []Compare{Absent(p.Volume.Key), Unchanged(p.Use.KV)}
	then := []Op{p.Volume.Put(Definition{Volume: v}), p.Use.Put(Use{Generation: p.Use.Value.Generation + 1})}
	if v.ExternalID != "" {
		compares, then = append(compares, Unchanged(p.External.KV)), append(then, p.External.Put(Claimed{Volume: p.id}))
	}

	return p.txn(compares, then...), nil
}

// checkUnique refuses storage that another volume of the cluster uses.
func (p Place) checkUnique() error {
	if p.external == "" || !p.External.Exists() || p.External.Value.Volume == p.id {
		return nil
	}

	other := p.External.Value.Volume
	return volume.Errorf(volume.ErrRefused, "external_id %q of driver %s is already registered in the cluster as volume %q; one storage volume has one id",
		p.external, p.driver, other).WithRemedy(remedy.Of(remedy.ShowVolume, other))
}

// Redefine returns the transaction that replaces the definition of a volume, if the volume has not
// changed since it was read.
func (p Place) Redefine(who Asker, d Definition) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	if !p.Volume.Exists() {
		return Txn{}, missing(p.id)
	}
	if err := p.checkUnique(); err != nil {
		return Txn{}, err
	}

	d.Volume.Shared = true
	compares, then := []Compare{Unchanged(p.Volume.KV)}, []Op{p.Volume.Put(d)}
	if p.external != "" {
		compares, then = append(compares, Unchanged(p.External.KV)), append(then, p.External.Put(Claimed{Volume: p.id}))
	}

	return p.txn(compares, then...), nil
}

// Undefine returns the transaction that removes a volume from the cluster. It refuses a volume that
// a host uses, or for which a call is in flight.
func (p Place) Undefine(who Asker) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	if err := p.checkUnused(who); err != nil {
		return Txn{}, err
	}

	compares := []Compare{Unchanged(p.Volume.KV), Unchanged(p.Use.KV), Unchanged(p.Call.KV), NoneIn(Users(p.id))}
	then := []Op{Delete(p.Volume.Key), Delete(p.Use.Key), Delete(p.Call.Key)}
	if p.External.Exists() && p.External.Value.Volume == p.id {
		compares, then = append(compares, Unchanged(p.External.KV)), append(then, Delete(p.External.Key))
	}

	return p.txn(compares, then...), nil
}

// MarkDeleting returns the transaction after which no host gets a hold on the volume any more. It
// refuses a volume that a host uses.
func (p Place) MarkDeleting(who Asker, v volume.Volume) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	if err := p.checkUnused(who); err != nil {
		return Txn{}, err
	}

	d := p.Volume.Value
	d.Volume, d.Deleting = v, true
	d.Volume.Shared = true
	return p.txn([]Compare{Unchanged(p.Volume.KV), Unchanged(p.Use.KV), NoneIn(Users(p.id))}, p.Volume.Put(d)), nil
}

// checkUnused refuses a volume that a host uses, or for which another host makes a call.
func (p Place) checkUnused(who Asker) error {
	use := p.Use.Value
	switch {
	case !p.Volume.Exists():
		return missing(p.id)
	case use.Holder != "":
		return volume.Errorf(volume.ErrRefused, "volume %q is held by host %q in mode %s", p.id, use.Holder, use.Access).WithRemedy(remedy.Of(remedy.ShowVolume, p.id))
	case use.Access != "":
		return volume.Errorf(volume.ErrRefused, "volume %q is used by hosts in mode %s", p.id, use.Access).WithRemedy(remedy.Of(remedy.ShowVolume, p.id))
	case p.Call.Exists() && p.Call.Value.Executor != who.Node:
		return volume.Errorf(volume.ErrRefused, "host %q is calling %s for volume %q", p.Call.Value.Executor, p.Call.Value.Call, p.id).WithRemedy(remedy.Of(remedy.ShowVolume, p.id))
	default:
		return nil
	}
}

func missing(id string) error {
	return volume.Errorf(volume.ErrNotFound, "the cluster has no volume %q", id).WithHint("volctl volume list")
}
