package volume

import (
	"testing"

	"github.com/volagent/volagent/volmgr/call"
)

func TestInBrief(t *testing.T) {
	mount := &MountIdentity{Device: "0:1", ID: 1}
	taken := Claim{Alloc: "a", Wanted: true, State: Mounted, Published: Present, Target: "/t", Mount: mount}
	record := func(claims ...Claim) Record {
		r := Record{Claims: map[string]Claim{}}
		for _, c := range claims {
			r.Claims[c.Alloc] = c
			r.Node.Staged, r.Node.Mount, r.Node.StagingPath = Present, mount, "/s"
		}
		return r
	}
	leaving, gone, creating := taken, taken, record()
	leaving.Wanted, leaving.State = false, Unpublishing
	gone.Published = Absent
	creating.Volume.Provision = Provisioning
	failed := &CallError{Step: "NodePublishVolume", Code: "Internal", Retry: RetryBackoff}
	for name, tt := range map[string]struct {
		r    Record
		at   *Attempt
		want State
	}{
		"free":      {record(), nil, StateFree},
		"pending":   {record(Claim{Alloc: "a", Wanted: true, State: Pending}), nil, StateMounting},
		"taken":     {record(taken), nil, StateMounted},
		"unmounted": {record(gone), nil, StateDegraded},
		"leaving":   {record(leaving), nil, StateDetaching},
		"failing":   {record(taken), &Attempt{Err: failed, Tries: stuckAfter}, StateStuck},
		"failed":    {record(taken), &Attempt{Err: failed, Tries: 1}, StateMounted},
		"hung":      {record(taken), &Attempt{Action: Action{Kind: Wait, Cause: CauseHung}}, StateStuck},
		"no plugin": {record(taken), &Attempt{Action: Action{Kind: Wait, Cause: CausePlugin}}, StateMounted},
		"creating":  {creating, &Attempt{Action: Action{Kind: call.CreateVolume}, Running: true}, StateMounting},
		"uncreated": {creating, nil, StateStuck},
	} {
		if got := InBrief(tt.r, tt.at); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
