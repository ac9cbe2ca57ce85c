package shared

import (
	"slices"
	"time"
)

// ProofKind is the kind of a proof that a host cannot write any more.
type ProofKind string

// These are the kinds of proofs. ProvenDetach is a proof for one volume. All others are proofs for the
// whole host.
const (
	// ProvenDetach means that ControllerUnpublishVolume for the host has succeeded, and that it cuts the
	// host off, as the maker of the driver documents.
	ProvenDetach ProofKind = "detach"
	// ProvenHook means that a hook has switched the host off, and then reported that it is off.
	ProvenHook ProofKind = "hook"
	// ProvenPerson means that a person has stated that the host is switched off.
	ProvenPerson ProofKind = "person"
	// ProvenReturned means that the host is back after a reboot and has nothing mounted.
	ProvenReturned ProofKind = "returned"
	// Replaced means that a person has stated that the machine behind the name of the host is gone, or
	// that another machine gets the name.
	Replaced ProofKind = "replaced"
)

// Proof is the proof that a host with one incarnation cannot write any more. It counts only in its
// epoch.
type Proof struct {
	// The first fields describe the newest proof: its kind, its author, the reason and the time.
	Kind   ProofKind `json:"kind"`
	Who    string    `json:"who"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
	Era    Era       `json:"era,omitzero"`

	// Volumes are the volumes whose hold was dropped because of the proof, in the order of the
	// drops. Drops contains the details.
	Volumes []string `json:"volumes,omitempty"`
	Drops   []Drop   `json:"drops,omitempty"`

	// Hooks are the hooks that were asked to switch the host off, also those without success.
	Hooks []AskedHook `json:"hooks,omitempty"`
}

// Drop is one hold that was dropped because of a proof.
type Drop struct {
	Volume string    `json:"volume"`
	Kind   ProofKind `json:"kind"`
	By     string    `json:"by"` // the host that dropped the hold
	At     time.Time `json:"at"`
}

// AskedHook is a hook that was asked to switch a host off.
type AskedHook struct {
	Name string    `json:"name"`
	By   string    `json:"by"` // the host on which it ran
	At   time.Time `json:"at"`

	// Outcome says how the last request has ended without a proof, for people.
	Outcome string `json:"outcome,omitempty"`
}

// Has reports whether the hold on a volume was dropped because of the proof.
func (p Proof) Has(id string) bool { return slices.Contains(p.Volumes, id) }

// with returns the proof with one more dropped hold.
func (p Proof) with(d Drop) Proof {
	if !p.Has(d.Volume) {
		p.Volumes = append(slices.Clone(p.Volumes), d.Volume)
	}
	p.Drops = append(slices.Clone(p.Drops), d)
	return p
}

// newest returns the proof with another kind, and keeps the drops and the hooks.
func (p Proof) newest(kind ProofKind, who, reason string, at time.Time, era Era) Proof {
	p.Kind, p.Who, p.Reason, p.At, p.Era = kind, who, reason, at, era
	return p
}
