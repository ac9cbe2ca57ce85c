package shared

import (
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// StorageCall describes a controller call that creates, changes or deletes the storage of a volume,
// before it is made.
type StorageCall struct {
	AnnouncedCall

	// Alone is set if no host may use the volume during the call.
	Alone bool
}

// BeginStorageCall returns the transaction that stores a definition with the intent of a call, and
// announces the call. The definition may be new. While the call is announced, no other host calls
// for the volume, and no host gets a hold. Package agent/hold/clean ends the call of a host that is
// gone.
func (p Place) BeginStorageCall(c StorageCall, d Definition) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, c.Asker); err != nil {
		return Txn{}, err
	}

	// An earlier call of this host may still have an effect. Only its repetition does no harm.
	repeats := p.Call.Value.Executor == c.Node && p.Call.Value.Call == c.Call
	switch {
	case p.Call.Exists() && !repeats:
		return Txn{}, p.busy()
	case p.Volume.Value.Deleting && c.Call != call.DeleteVolume:
		return Txn{}, volume.Errorf(volume.ErrRefused, "volume %q is being deleted", p.id)
	case p.Volume.Exists() && d.Operation != p.Volume.Value.Operation:
		return Txn{}, volume.Errorf(volume.ErrRefused, "volume %q was created again meanwhile", p.id)
	}
	if err := p.Shown().Unused(); c.Alone && err != nil {
		return Txn{}, err
	}

	compares := []Compare{Unchanged(p.Volume.KV), Unchanged(p.Call.KV), Unchanged(p.Use.KV)}
	if c.Alone {
		compares = append(compares, NoneIn(Users(p.id)))
	}

	then := append(p.notice(), p.put(d), p.Call.Put(c.value()))
	if !p.Use.Exists() {
		then = append(then, p.Use.Put(Use{Generation: 1}))
	}
	return p.txn(compares, then...), nil
}

// EndStorageCall returns the transaction that stores the result of a call, and ends the call. It
// refuses storage that another volume of the cluster uses. It fails if the call was taken over.
func (p Place) EndStorageCall(who Asker, operation string, d Definition) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	switch {
	case !p.Volume.Exists():
		return Txn{}, volume.Errorf(volume.ErrRefused, "volume %q was deregistered meanwhile", p.id)
	case !p.announced(who, operation):
		return Txn{}, volume.Errorf(volume.ErrRefused, "another host has taken over the call for volume %q", p.id)
	}
	if err := p.checkUnique(); err != nil {
		return Txn{}, err
	}

	compares, then := p.claimStorage()
	compares = append(compares, Unchanged(p.Volume.KV), Unchanged(p.Call.KV), Unchanged(p.Use.KV))
	return p.txn(compares, append(append(then, p.notice()...), p.put(d), Delete(p.Call.Key))...), nil
}

// LeaveStorageCall returns the transaction that ends a call whose outcome is unknown. The definition
// keeps the intent. An empty transaction means that the call has already ended. LeaveStorageCall
// returns ErrPluginUnavailable while another host makes the call. That host, or the host that takes
// over its calls, ends it.
func (p Place) LeaveStorageCall(who Asker, operation string) (Txn, error) {
	if err := CheckRegistered(p.Meta, p.Node, who); err != nil {
		return Txn{}, err
	}
	c := p.Call.Value
	entrusted := p.Call.Exists() && c.Operation == operation && c.Task != ""
	if entrusted && c.Executor != who.Node {
		return Txn{}, volume.Errorf(volume.ErrPluginUnavailable, "host %q has not ended the call %s for volume %q", c.Executor, c.Call, p.id)
	}
	if !p.announced(who, operation) {
		return Txn{}, nil
	}
	return p.txn([]Compare{Unchanged(p.Call.KV)}, Delete(p.Call.Key)), nil
}

// announced reports whether the call in flight is one of the asking host with the operation. A call that
// the host has taken over belongs to no operation.
func (p Place) announced(who Asker, operation string) bool {
	c := p.Call.Value
	own := p.Call.Exists() && c.Executor == who.Node && !c.Taken
	return own && operation != "" && c.Operation == operation
}
