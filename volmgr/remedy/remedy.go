// Package remedy defines the commands and advice that the domain proposes to the operator. A remedy
// is a value with a kind and its subjects, such as the id of a volume. The package suggest turns a
// remedy into a command. The domain therefore contains no command-line text, and tests can compare
// values instead of texts.
package remedy

import "slices"

// Remedy is one proposed solution to a problem. The zero value proposes nothing.
type Remedy struct {
	Kind     Kind
	Subjects []string // the order of the subjects depends on the kind
}

// Kind is the kind of action that a remedy proposes.
type Kind string

// These are the kinds of remedies.
const (
	ShowVolume       Kind = "show volume"
	AwaitFree        Kind = "await free volume"
	CreateAgain      Kind = "create volume again"
	CreateFromFile   Kind = "create volume again from its file"
	DeleteVolume     Kind = "delete volume"
	ForceDeregister  Kind = "deregister volume by force"
	GiveUpCalls      Kind = "give up pending calls"
	SeeOrGiveUpCalls Kind = "show or give up pending calls"
	ExpandVolume     Kind = "expand volume"
	WithdrawExpand   Kind = "withdraw expansion"
	ModifyVolume     Kind = "modify volume"
	AddCapability    Kind = "add capability to volume"
	RaiseCapacityMax Kind = "raise capacity_max of volume"
	DetachClaim      Kind = "detach claim"
	ForceDetach      Kind = "detach claim by force"
	DetachWithout    Kind = "detach claim without plugin"
	DetachAll        Kind = "detach all claims"
	DetachUnneeded   Kind = "detach an unneeded volume"
	Unmount          Kind = "unmount directory"
	EndProcess       Kind = "end process"
	EndOwner         Kind = "end process that owns claim"
	StopUnit         Kind = "stop unit"
	StopOwner        Kind = "stop unit that owns claim"
	StopContainers   Kind = "stop containers"
	StopOwners       Kind = "stop containers that own claim"
	StopUser         Kind = "stop process or its unit"
	ShowPlugin       Kind = "show plugin"
	ShowPluginLog    Kind = "show log of plugin"
	StartPlugin      Kind = "start plugin"
	ListSnapshots    Kind = "list snapshots of plugin"
	ShowTest         Kind = "show test of plugin"
	UnmountPath      Kind = "unmount path"
	Follow           Kind = "follow advice"
	ShowNode         Kind = "show host"
	ShowTable        Kind = "show mount table"
	Undrain          Kind = "undrain host"
	ShareVolume      Kind = "share volume"
	UnshareVolume    Kind = "unshare volume"
	ReplaceNode      Kind = "replace host in the cluster"
	ReturnOrReplace  Kind = "start or replace host in the cluster"
)

// Of returns a remedy of the given kind for the given subjects.
func Of(k Kind, subjects ...string) Remedy { return Remedy{Kind: k, Subjects: subjects} }

// Advice returns a remedy that consists of the given words. If words is empty, it returns an empty
// remedy.
func Advice(words string) Remedy {
	if words == "" {
		return Remedy{}
	}
	return Of(Follow, words)
}

// Empty reports whether the remedy proposes nothing.
func (r Remedy) Empty() bool { return r.Kind == "" }

// Or returns r, or other if r proposes nothing.
func (r Remedy) Or(other Remedy) Remedy {
	if r.Empty() {
		return other
	}
	return r
}

// Equal reports whether both remedies propose the same action.
func (r Remedy) Equal(o Remedy) bool {
	return r.Kind == o.Kind && slices.Equal(r.Subjects, o.Subjects)
}
