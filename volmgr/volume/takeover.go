package volume

// Takeover says whether another host can take a shared volume over from a lost host.
type Takeover string

// These are the values of Takeover.
const (
	// TakeoverProven means that another host takes the volume over as soon as a proof exists that the
	// lost host no longer writes. It is the default.
	TakeoverProven Takeover = ""
	// TakeoverNever means that the volume waits for the lost host, even if a proof exists.
	TakeoverNever Takeover = "never"
)

// CheckTakeover refuses "takeover: never" for a volume that no other host can use.
func (v Volume) CheckTakeover() error {
	if v.Takeover == TakeoverProven || v.Shared {
		return nil
	}
	return Errorf(ErrRefused, "volume %q cannot have takeover: %s: its scope is host, so no other host takes it over", v.ID, v.Takeover).
		WithHint("remove takeover from the volume file, or use scope: shared")
}

// checkTakeover refuses an unknown value of Takeover.
func (v Volume) checkTakeover() error {
	if v.Takeover == TakeoverProven || v.Takeover == TakeoverNever {
		return nil
	}
	return Errorf(ErrInvalid, "takeover of volume %q is %q; it is never or proven", v.ID, v.Takeover)
}

// takeover returns the value of Takeover as volume files have it.
func (v Volume) takeover() string {
	if v.Takeover == TakeoverProven {
		return "proven"
	}
	return string(v.Takeover)
}
