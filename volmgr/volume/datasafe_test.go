package volume_test

import (
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestDataSafe checks which observations, reports of the plugin and failed steps make the data
// count as lost or as possibly lost.
func TestDataSafe(t *testing.T) {
	made, other := volume.MountIdentity{Boot: "b", Device: "7:0", Root: "/", ID: 1}, volume.MountIdentity{Boot: "b", Device: "7:1", Root: "/", ID: 2}
	sight := func(s volume.Seen) volume.Sight { return volume.Sight{Seen: s, Identity: made} }
	failed := func(kind call.Method, code string) *volume.Attempt {
		return &volume.Attempt{Action: volume.Action{Kind: kind, Alloc: "a"}, Tries: 3, Err: &volume.CallError{Step: string(kind), Code: code}}
	}
	said := func(severities ...string) volume.Report {
		c := &volume.Checkup{}
		for _, s := range severities {
			c.Found = append(c.Found, call.Condition{Severity: s})
		}
		return volume.Report{Node: &volume.Checkup{}, Controller: c}
	}
	unsent := failed(call.NodeStage, "Unavailable")
	unsent.Err.Unsent = true
	for name, c := range map[string]struct {
		spoil func(r *volume.Record, o *volume.Observed)
		at    *volume.Attempt
		last  volume.Report
		want  volume.Safety
	}{
		"all is well":           {want: volume.SafetyYes},
		"degraded storage":      {last: said(call.Degraded), want: volume.SafetyYes},
		"busy":                  {at: failed(call.NodeUnpublish, "Internal"), want: volume.SafetyYes},
		"said to be lost":       {last: said(call.Degraded, call.DataLoss), want: volume.SafetyNo},
		"answered as lost":      {at: failed(call.NodeUnpublish, "DataLoss"), want: volume.SafetyNo},
		"inaccessible":          {last: said(call.Inaccessible), want: volume.SafetyUnknown},
		"abnormal":              {last: said(call.Abnormal), want: volume.SafetyUnknown},
		"a severity of later":   {last: said("status 9"), want: volume.SafetyUnknown},
		"cannot be staged":      {at: failed(call.NodeStage, "Internal"), want: volume.SafetyUnknown},
		"cannot be published":   {at: failed(call.NodePublish, "Internal"), want: volume.SafetyUnknown},
		"cannot be expanded":    {at: failed(call.NodeExpand, "Internal"), want: volume.SafetyUnknown},
		"nothing was asked":     {at: unsent, want: volume.SafetyYes},
		"lost, and nothing was": {at: unsent, last: said(call.DataLoss), want: volume.SafetyNo},
		"dead staging":          {spoil: func(_ *volume.Record, o *volume.Observed) { o.Staging = sight(volume.SeenDead) }, want: volume.SafetyUnknown},
		"hung target":           {spoil: func(_ *volume.Record, o *volume.Observed) { o.Targets["a"] = sight(volume.SeenHung) }, want: volume.SafetyUnknown},
		"unreadable bind":       {spoil: func(_ *volume.Record, o *volume.Observed) { o.Binds["a"] = sight(volume.SeenError) }, want: volume.SafetyUnknown},
		"another one": {spoil: func(_ *volume.Record, o *volume.Observed) {
			o.Targets["a"] = volume.Sight{Seen: volume.SeenMount, Identity: other}
		}, want: volume.SafetyUnknown},
		"not there":       {spoil: func(_ *volume.Record, o *volume.Observed) { o.Targets["a"] = volume.Sight{} }, want: volume.SafetyYes},
		"lazily, and hid": {spoil: func(r *volume.Record, _ *volume.Observed) { r.Node.Unseen = []volume.Unseen{{Path: "/t"}} }, want: volume.SafetyUnknown},
		"being deleted":   {spoil: func(r *volume.Record, _ *volume.Observed) { r.Volume.Provision = volume.Deleting }, want: volume.SafetyUnknown},
	} {
		r := volume.Record{
			Volume: volume.Volume{ID: "v"}, Node: volume.NodeSide{Mount: &made},
			Claims: map[string]volume.Claim{"a": {Alloc: "a", Wanted: true, Mount: &made, BoundMount: &made}},
		}
		o := volume.Observed{
			Staging: sight(volume.SeenMount), Targets: map[string]volume.Sight{"a": sight(volume.SeenMount)}, Binds: map[string]volume.Sight{"a": sight(volume.SeenMount)},
		}
		if c.spoil != nil {
			c.spoil(&r, &o)
		}
		if got := volume.DataSafe(r, o, c.at, c.last); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if got := volume.DataSafe(volume.Record{}, volume.Observed{}, nil, volume.Report{}); got != volume.SafetyYes {
		t.Errorf("of nothing: %s", got)
	}
}
