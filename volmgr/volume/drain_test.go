package volume_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// living maps the live owners to their views. All other owners count as gone.
type living map[volume.Owner]volume.OwnerView

func (l living) Gone(o volume.Owner) bool             { _, ok := l[o]; return !ok }
func (l living) View(o volume.Owner) volume.OwnerView { return l[o] }

func TestOccupancy(t *testing.T) {
	unit := volume.Owner{Kind: volume.OwnerUnit, Unit: "web.service", Invocation: "1"}
	pid := volume.Owner{Kind: volume.OwnerPID, PID: 7, StartTime: 1}
	gone := volume.Owner{Kind: volume.OwnerPID, PID: 8, StartTime: 1}
	owners := living{unit: {Life: volume.LifeRunning, PID: 5, Command: "nginx"}, pid: {Life: volume.LifeUnknown, Command: "sh"}}
	record := func(o volume.Owner, wanted bool) volume.Record {
		return volume.Record{
			Volume: volume.Volume{ID: "a b", PluginID: "p", Driver: "d", ExternalID: "x"},
			Node:   volume.NodeSide{Mode: &volume.Mode{}, Staged: volume.Unknown, Uses: volume.Uses{Stage: true}, StagingPath: "/s"},
			Claims: map[string]volume.Claim{"web": {Alloc: "web", Wanted: wanted, State: map[bool]volume.ClaimState{true: volume.Pending, false: volume.Unpublishing}[wanted], Terms: volume.Terms{Owner: o}, Target: "/t", Published: volume.Unknown}},
		}
	}
	debt := record(pid, false)
	debt.Leftover = true
	attached := volume.Record{Volume: volume.Volume{ID: "c", PluginID: "p"}, Node: volume.NodeSide{Attached: volume.Present, Uses: volume.Uses{Attach: true}, NodeID: "n"}}
	down := volume.Observed{Plugin: plugin.View{Known: true, State: "backing-off"}}
	busy := &volume.Attempt{Action: volume.Action{Kind: call.NodeUnpublish, Alloc: "web"}, Tries: 1, Err: &volume.CallError{Step: "NodeUnpublishVolume", Code: volume.CodeHost, Message: "busy", Retry: volume.RetryBackoff, HeldBy: []string{"pid 3 rsync"}, Remedy: remedy.Of(remedy.EndProcess, "3")}}
	for _, tt := range []struct {
		name    string
		r       volume.Record
		o       volume.Observed
		at      *volume.Attempt
		waiting bool
		want    []string // texts that the message must contain
	}{
		{"a unit", record(unit, true), down, nil, true, []string{"web.service (pid 5, nginx)", "systemctl stop web.service"}},
		{"nobody knows whether it lives", record(pid, true), down, nil, true, []string{"pid 7 (sh)", "kill 7"}},
		{"an owner that is gone", record(gone, true), down, nil, false, []string{"plugin unavailable", "volctl volume detach 'a b' web --without-plugin=umount"}},
		{"a plugin that is down", record(unit, false), down, nil, false, []string{"plugin unavailable", "--without-plugin=umount"}},
		{"a mount that is busy", record(unit, false), down, busy, false, []string{"busy, held by pid 3 rsync", "kill 3", "--without-plugin=umount"}},
		{"a debt", debt, down, nil, false, []string{"deregistered by force", "volctl plugin status p", "volctl volume deregister 'a b' --force --forget"}},
		{"an attachment", attached, down, nil, false, []string{"ControllerUnpublishVolume"}},
	} {
		got := tt.r.Occupancy(tt.o, tt.at, owners)
		list, other := got.Left, got.Waiting
		if tt.waiting {
			list, other = other, list
		}
		if len(list) != 1 || len(other) != 0 || got.Empty() {
			t.Errorf("%s: got %+v", tt.name, got)
			continue
		}
		words := strings.Join([]string{list[0].Owner, list[0].Message, suggest.Words(list[0].Command), suggest.Words(list[0].Else)}, "\n")
		for _, want := range tt.want {
			if !strings.Contains(words, want) {
				t.Errorf("%s: %q is not in\n%s", tt.name, want, words)
			}
		}
		if list[0].Command.Empty() {
			t.Errorf("%s: there is no command", tt.name)
		}
	}
	free := volume.Record{Volume: volume.Volume{ID: "free"}, Node: volume.NodeSide{StagingPath: "/s", Seq: 4}}
	if got := free.Occupancy(volume.Observed{}, nil, owners); !got.Empty() {
		t.Errorf("a free volume: %+v", got)
	}
}

// TestOccupancyWithout checks a claim that is being detached without the plugin. For each way of
// unmounting, the suggested command must use the next more forceful way.
func TestOccupancyWithout(t *testing.T) {
	for how, want := range map[volume.Without]string{volume.WithPlugin: "=umount", volume.ByUmount: "=force", volume.ByForce: "=lazy", volume.ByLazy: ""} {
		c := volume.Claim{Alloc: "web", State: volume.Unpublishing, Published: volume.Unknown, Target: "/t", Without: how}
		r := volume.Record{Volume: volume.Volume{ID: "a", PluginID: "p"}, Node: volume.NodeSide{Mode: &volume.Mode{}}, Claims: map[string]volume.Claim{"web": c}}
		at := &volume.Attempt{Action: volume.Action{Kind: volume.Unmount, Alloc: "web", How: how}, Tries: 3, Err: &volume.CallError{Step: "umount", Code: volume.CodeHost, Message: "busy", Retry: volume.RetryBackoff}}
		got := suggest.Words(r.Occupancy(volume.Observed{Plugin: plugin.View{Known: true}}, at, nil).Left[0].Else)
		if !strings.HasSuffix(got, want) || want == "" && got != "" {
			t.Errorf("%q: %q", how, got)
		}
	}
}

func TestStopCommand(t *testing.T) {
	for want, o := range map[string]volume.Owner{
		`systemctl stop 'a\x20b.service'`: {Kind: volume.OwnerUnit, Unit: `a\x20b.service`},
		"kill 7":                          {Kind: volume.OwnerPID, PID: 7},
		"docker stop $(docker ps -q --filter volume=vol)": {Kind: volume.OwnerRuntime, Runtime: "docker", Volume: "vol"},
		"volctl volume detach vol web":                    {Kind: volume.OwnerNone},
	} {
		if got := suggest.Words(volume.Claim{Alloc: "web", Terms: volume.Terms{At: "/srv/data", Owner: o}}.StopOwner("vol")); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	force := "volctl volume detach vol web --force"
	bound := volume.MountIdentity{ID: 9}
	for name, tt := range map[string]struct {
		c    volume.Claim
		want string
	}{
		"a name that systemd does not allow": {volume.Claim{Terms: volume.Terms{Owner: volume.Owner{Kind: volume.OwnerUnit, Unit: "a b.service"}}}, force},
		"a mount that is not there":          {volume.Claim{Terms: volume.Terms{Owner: volume.Owner{Kind: volume.OwnerMount, PID: 7}, At: "/srv/data"}}, force},
		"a mount": {volume.Claim{
			Terms: volume.Terms{Owner: volume.Owner{Kind: volume.OwnerMount}, At: "/srv/data"}, Bound: volume.Present, BoundMount: &bound,
		}, "volctl umount /srv/data"},
	} {
		tt.c.Alloc = "web"
		if got := suggest.Words(tt.c.StopOwner("vol")); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// TestAdmitDraining checks that a host that is being drained admits no new claim. A repeated
// request for an existing claim gets its usual answer. A request counts as new if it would have to
// wait until another claim ends, or if the earlier claim of its alloc has a dead owner.
func TestAdmitDraining(t *testing.T) {
	old := admit(t, offering(call.SingleNodeMultiWriter), writer("a"))
	draining := func(q *volume.Request) { q.Draining = true }
	if next, err := volume.Admit(old, with(writer("a"), draining), plugin.Info{}, now); err != nil || !reflect.DeepEqual(next, old) {
		t.Errorf("the same again: %v, %+v", err, next)
	}
	released, err := volume.Detach(old, "a")
	if err != nil {
		t.Fatal(err)
	}
	single, err := volume.Detach(admit(t, offering(call.SingleNodeWriter), writer("a")), "a")
	if err != nil {
		t.Fatal(err)
	}
	gone := admit(t, offering(call.SingleNodeWriter), with(writer("a"), func(q *volume.Request) { q.Owner = volume.Owner{Kind: volume.OwnerPID, PID: 7} }))
	for name, tt := range map[string]struct {
		r   volume.Record
		ask volume.Request
	}{
		"a new one":                  {old, writer("b")},
		"one that is being detached": {released, writer("a")},
		"one that would wait":        {single, writer("b")},
		"one whose owner is gone":    {gone, with(writer("a"), func(q *volume.Request) { q.Owners = living{} })},
	} {
		next, err := volume.Admit(tt.r, with(tt.ask, draining), plugin.Info{}, now)
		if !errors.Is(err, volume.ErrRefused) || volume.IsDetaching(err) || !strings.Contains(err.Error(), "this host is draining") || hintOf(err) != "volctl node undrain" || !reflect.DeepEqual(next, tt.r) {
			t.Errorf("%s: %v (hint %q)", name, err, hintOf(err))
		}
	}
}
