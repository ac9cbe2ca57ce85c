package volume

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
)

// CheckMutable refuses a mutable parameter without a name.
func (v Volume) CheckMutable() error {
	if _, ok := v.Mutable[""]; ok {
		return Errorf(ErrInvalid, "a mutable parameter of volume %q has no name", v.ID)
	}
	return nil
}

// Mutations returns the requested mutable parameters that are not known to be in force. Other
// parameters stay as they are, because CSI has no way to remove one.
func (v Volume) Mutations(asked map[string]string) map[string]string {
	out := map[string]string{}
	for name, value := range asked {
		have, known := v.Mutable[name]
		if _, open := v.Modifying[name]; open || !known || have != value {
			out[name] = value
		}
	}

	return out
}

// Mutated returns the volume with these mutable parameters in force. Their values are then certain.
func (v Volume) Mutated(now map[string]string) Volume {
	v.Mutable, v.Modifying = merged(v.Mutable, now), maps.Clone(v.Modifying)
	maps.DeleteFunc(v.Modifying, func(name, _ string) bool { _, settled := now[name]; return settled })
	if len(v.Modifying) == 0 {
		v.Modifying = nil
	}
	return v
}

// Mutating returns the volume with the intent to change mutable parameters.
func (v Volume) Mutating(now map[string]string) Volume {
	v.Modifying = merged(v.Modifying, now)
	return v
}

// MutableChange describes the change that Mutated makes, in the format of Merge.
func (v Volume) MutableChange(now map[string]string) string {
	return fmt.Sprintf("mutable_parameters: %s → %s", show(v.Mutable), show(merged(v.Mutable, now)))
}

func merged(old, now map[string]string) map[string]string {
	out := maps.Clone(old)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, now)
	return out
}

// modifying returns the parameters of an unfinished modify as arguments for the command.
func (v Volume) modifying() []string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(v.Modifying)) {
		pairs = append(pairs, name+"="+v.Modifying[name])
	}
	return pairs
}

// inDoubt describes the parameters that an unfinished modify leaves in doubt.
func (v Volume) inDoubt() []string {
	pairs := v.modifying()
	if len(pairs) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("modifying %s was not seen to end, so whether that is in force is not known; to go on with it: %s",
		strings.Join(pairs, " "), suggest.Words(Modify(v.ID, pairs...)))}
}

// Modify returns the remedy that modifies a volume.
func Modify(id string, pairs ...string) remedy.Remedy {
	return remedy.Of(remedy.ModifyVolume, append([]string{id}, pairs...)...)
}
