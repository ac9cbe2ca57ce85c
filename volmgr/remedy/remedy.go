// Package remedy names the repairs that the domain proposes. A remedy is a value: its kind and its
// subjects. The package suggest turns a remedy into a command. So the domain contains no
// command-line text, and tests compare decisions instead of words.
package remedy

import "slices"

// Remedy is one repair. The zero value proposes nothing.
type Remedy struct {
	Kind     Kind
	Subjects []string // in the order of the constructor's arguments
}

// Kind says what a remedy does.
type Kind string

// The kinds of remedies.
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
)

// Of returns a remedy of a kind for its subjects.
func Of(k Kind, subjects ...string) Remedy { return Remedy{Kind: k, Subjects: subjects} }

// Advice returns a remedy that consists of the given words. It is empty if there are none.
func Advice(words string) Remedy {
	if words == "" {
		return Remedy{}
	}
	return Of(Follow, words)
}

// Empty reports whether the remedy proposes nothing.
func (r Remedy) Empty() bool { return r.Kind == "" }

// Or returns the remedy, or another one if it is empty.
func (r Remedy) Or(other Remedy) Remedy {
	if r.Empty() {
		return other
	}
	return r
}

// Equal reports whether both propose the same.
func (r Remedy) Equal(o Remedy) bool {
	return r.Kind == o.Kind && slices.Equal(r.Subjects, o.Subjects)
}
