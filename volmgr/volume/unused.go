package volume

import (
	"errors"
	"fmt"
	"strings"
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
			WithHint("%s", r.detached())
	case len(names) > 0:
		return Errorf(ErrRefused, "the claim of %s on volume %q is still being detached", strings.Join(names, ", "), id).
			WithHint("wait for it: %s", Command("volctl wait --volume %s --for free", id))
	case len(r.PendingCalls()) > 0:
		return Errorf(ErrRefused, "plugin %q is still to be told of volume %q: %s", r.Volume.PluginID, id, strings.Join(r.PendingCalls(), ", ")).
			WithHint("volctl plugin status %s", r.Volume.PluginID)
	case r.Held():
		return Errorf(ErrRefused, "volume %q is still being taken off this host", id).
			WithHint("volctl volume status %s", id)
	}

	return nil
}

// released returns the command that detaches the claims. Detach refuses a claim whose owner is
// alive, so a command for that owner comes first.
func (r Record) detached() string {
	for _, c := range r.Ordered() {
		if c.Wanted && c.Owner.Mortal() {
			return c.freedBy(r.Volume.ID)
		}
	}
	return Command("volctl volume detach %s --all", r.Volume.ID)
}

// hintOf returns the hint of an error, if it has one.
func hintOf(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Hint
}
