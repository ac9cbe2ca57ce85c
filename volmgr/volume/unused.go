package volume

import (
	"fmt"
	"strings"

	"github.com/volagent/volagent/volmgr/remedy"
)

// Unused returns an error while the volume has claims or pending calls, or while anything of it is
// on this host.
func Unused(r Record) error {
	id := r.Volume.ID
	var names []string
	releasing := true
	for _, c := range r.Ordered() {
		names = append(names, fmt.Sprintf("%q (%s)", c.Alloc, c.State))
		releasing = releasing && !c.Wanted
	}

	switch {
	case len(names) > 0 && !releasing:
		return Errorf(ErrRefused, "volume %q is claimed by %s", id, strings.Join(names, ", ")).
			WithRemedy(r.detached())
	case len(names) > 0:
		return Errorf(ErrRefused, "the claim of %s on volume %q is still being detached", strings.Join(names, ", "), id).
			WithRemedy(remedy.Of(remedy.AwaitFree, id))
	case len(r.PendingCalls()) > 0:
		return Errorf(ErrRefused, "plugin %q is still to be told of volume %q: %s", r.Volume.PluginID, id, strings.Join(r.PendingCalls(), ", ")).
			WithRemedy(remedy.Of(remedy.ShowPlugin, r.Volume.PluginID))
	case r.Held():
		return Errorf(ErrRefused, "volume %q is still being taken off this host", id).
			WithRemedy(remedy.Of(remedy.ShowVolume, id))
	}

	return nil
}

// detached returns the remedy that detaches the claims. Detach refuses a claim whose owner is
// alive, so a remedy for that owner comes first.
func (r Record) detached() remedy.Remedy {
	for _, c := range r.Ordered() {
		if c.Wanted && c.Owner.Mortal() {
			return c.freedBy(r.Volume.ID)
		}
	}
	return remedy.Of(remedy.DetachAll, r.Volume.ID)
}
