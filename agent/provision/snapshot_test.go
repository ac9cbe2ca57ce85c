package provision_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

const minute = time.Minute

// TestSnapshotRipens checks that the agent asks for the state of a new snapshot, with growing
// pauses, until the snapshot is ready. The agent must use a call that the plugin supports, and
// delete the intent at the end.
func TestSnapshotRipens(t *testing.T) {
	const create = "CreateSnapshot nightly of vol-9, 1 held, 1 secrets"
	for _, tt := range []struct {
		caps string
		look string
	}{
		{"get", "GetSnapshot snap-1, 0 held, 1 secrets"},
		{"list", "ListSnapshots snap-1, 0 held, 1 secrets"},
		{"", create},
	} {
		c := newCamera(t, strings.Fields(tt.caps)...)
		c.ripe = 7
		made, err := c.take(t, minute)
		if err != nil || made.ID != "snap-1" || !made.Ready || len(made.Snapshots) != 1 || made.Intent.Name != "nightly" {
			t.Errorf("%q: %v, %+v", tt.caps, err, made)
		}
		equal(t, "calls with "+tt.caps, c.calls, append([]string{create}, strings.Split(strings.Repeat("|"+tt.look, 7), "|")[1:]...))
		equal(t, "pauses", c.paused, []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 10 * time.Second, 10 * time.Second})
		equal(t, "intents", c.snapshots, map[string]volume.SnapshotIntent{})
		equal(t, "events", c.events, []string{`snapshot-created data: snapshot "nightly" has id "snap-1" and is ready`})
	}
}

// TestSnapshotAgain checks that a second request with the same name returns the same snapshot.
func TestSnapshotAgain(t *testing.T) {
	c := newCamera(t, "get")
	for range 2 {
		if made, err := c.take(t, 0); err != nil || made.ID != "snap-1" {
			t.Errorf("%v, %+v", err, made)
		}
	}
}

// TestSnapshotWithoutWait checks that the agent calls the plugin once if the caller does not wait.
// The intent stays until the agent sees that the snapshot is ready.
func TestSnapshotWithoutWait(t *testing.T) {
	c := newCamera(t, "list")
	c.ripe = 1
	made, err := c.take(t, 0)
	if err != nil || made.ID != "snap-1" || made.Ready || len(c.paused) > 0 {
		t.Errorf("%v, %+v, %v", err, made, c.paused)
	}
	if in := c.Snapshots(); len(in) != 1 || in[0].ID != "snap-1" {
		t.Errorf("intents %+v", in)
	}
	c.fails[call.CreateSnapshot] = []error{refusal(call.CreateSnapshot, "Aborted")}
	if made, err = c.take(t, 0); err != nil || made.ID != "" || len(c.snapshots) != 1 {
		t.Errorf("while the plugin is at it: %v, %+v, %+v", err, made, c.snapshots)
	}
	list, err := c.service().Snapshots(t.Context(), volume.SnapshotsAsk{PluginID: "ebs"})
	if err != nil || len(list.Listed) != 1 || list.Listed[0].Name != "nightly" || len(list.Pending)+len(c.snapshots) != 0 {
		t.Errorf("seen to be ready: %v, %+v, %+v", err, list, c.snapshots)
	}
}

// TestSnapshotPending checks that the agent repeats the call with the same name while the plugin is
// still working.
func TestSnapshotPending(t *testing.T) {
	c := newCamera(t, "get")
	c.fails[call.CreateSnapshot] = []error{refusal(call.CreateSnapshot, "Aborted"), refusal(call.CreateSnapshot, "DeadlineExceeded")}
	var doing []string
	s := c.service()
	c.planted = func() {
		list, _ := s.Snapshots(t.Context(), volume.SnapshotsAsk{Pending: true})
		doing = append(doing, list.Pending[0].Doing)
	}
	made, err := s.Snapshot(t.Context(), volume.SnapshotAsk{Volumes: []string{"data"}, Name: "nightly"}, minute)
	if err != nil || made.ID != "snap-1" || len(c.at) != 1 || len(c.snapshots) != 0 {
		t.Errorf("%v, %+v, %+v", err, made, c.snapshots)
	}
	equal(t, "what was told meanwhile", doing, []string{"CreateSnapshot: Aborted: no", "CreateSnapshot: DeadlineExceeded: no"})
}

// TestSnapshotLate checks that the intent stays when the wait ends. The error says that the plugin
// continues.
func TestSnapshotLate(t *testing.T) {
	c := newCamera(t, "get")
	c.ripe, c.patience = 99, 3
	_, err := c.take(t, minute)
	want(t, "not ready", err, volume.ErrTimeout, `snapshot "nightly" (id "snap-1" at plugin "ebs") is not ready after 1m0s; the plugin continues`,
		"volctl volume snapshot list --plugin ebs", "to wait for it: volctl volume snapshot create data nightly")
	if in := c.Snapshots(); len(in) != 1 || in[0].ID != "snap-1" {
		t.Errorf("intents %+v", in)
	}

	c = newCamera(t)
	c.patience = 2
	for range 5 {
		c.fails[call.CreateSnapshot] = append(c.fails[call.CreateSnapshot], refusal(call.CreateSnapshot, "DeadlineExceeded"))
	}
	_, err = c.take(t, minute)
	want(t, "never answered", err, volume.ErrTimeout, `plugin "ebs" has not confirmed snapshot "nightly"`, "keeps the intent",
		"repeat the command to continue: volctl volume snapshot create data nightly", "volctl volume snapshot delete ebs nightly --forget")
	var ce *volume.CallError
	if !errors.As(err, &ce) || ce.Code != "DeadlineExceeded" || len(c.snapshots) != 1 {
		t.Errorf("the failed call is lost: %v, %+v", err, c.snapshots)
	}
	if list, err := c.service().Snapshots(t.Context(), volume.SnapshotsAsk{VolumeID: "data", Pending: true}); err != nil || len(list.Pending) != 1 || list.Pending[0].ID != "" {
		t.Errorf("what is shown: %v, %+v", err, list)
	}
	c.fails, c.patience = map[call.Method][]error{}, 0
	if made, err := c.take(t, minute); err != nil || made.ID != "snap-1" || len(c.at) != 1 || len(c.snapshots) != 0 {
		t.Errorf("the same again: %v, %+v, %+v", err, made, c.snapshots)
	}
}

// TestSnapshotFails checks that the agent deletes the intent if the plugin refuses. After every
// other error, the intent stays.
func TestSnapshotFails(t *testing.T) {
	for code, tt := range map[string]struct {
		kind  error
		kept  bool
		words string
	}{
		"NotFound":           {volume.ErrNotFound, false, `plugin "ebs" reports "not found": no`},
		"FailedPrecondition": {volume.ErrRefused, false, "refuses the request: no"},
		"AlreadyExists":      {volume.ErrRefused, false, "refuses the request: no"},
		"ResourceExhausted":  {volume.ErrRefused, false, "refuses the request: no"},
		"Unimplemented":      {volume.ErrRefused, false, "does not support the request: no"},
		"InvalidArgument":    {volume.ErrInvalid, false, "refuses the request: no"},
		"OutOfRange":         {volume.ErrInvalid, false, "refuses the request: no"},
		"PermissionDenied":   {volume.ErrRefused, false, "--secret KEY=file:PATH"},
		"Internal":           {nil, true, `unknown whether plugin "ebs" made snapshot "nightly", so the agent keeps the intent`},
		"Unknown":            {nil, true, "volctl volume snapshot create data nightly"},
		"Unavailable":        {volume.ErrPluginUnavailable, true, "it is unknown"},
	} {
		c := newCamera(t)
		c.fails[call.CreateSnapshot] = []error{refusal(call.CreateSnapshot, code)}
		_, err := c.take(t, minute)
		want(t, code, err, tt.kind, tt.words)
		if (len(c.snapshots) == 1) != tt.kept || len(c.calls) != 1 {
			t.Errorf("%s: intents %+v after %q", code, c.snapshots, c.calls)
		}
		if !tt.kept {
			continue
		}
		c.fails[call.CreateSnapshot] = []error{refusal(call.CreateSnapshot, "InvalidArgument")}
		_, err = c.take(t, minute)
		want(t, code+", then a refusal", err, nil, `unknown whether an earlier call made snapshot "nightly"`)
		if len(c.snapshots) != 1 {
			t.Errorf("%s: a refusal now says nothing of before", code)
		}
	}
}

// TestSnapshotRefused checks that the agent refuses a request that cannot succeed, before it calls
// the plugin or stores an intent.
func TestSnapshotRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		caps  string
		plan  func(*camera)
		ask   volume.SnapshotAsk
		kind  error
		words string
	}{
		"a plugin that cannot":   {"none", nil, volume.SnapshotAsk{}, volume.ErrRefused, `plugin "ebs" cannot make snapshots`},
		"one that cannot groups": {"", nil, volume.SnapshotAsk{Group: true}, volume.ErrRefused, `plugin "ebs" cannot make group snapshots`},
		"an unknown volume":      {"", nil, volume.SnapshotAsk{Volumes: []string{"gone"}}, volume.ErrNotFound, `no volume "gone"`},
		"no volume":              {"group", nil, volume.SnapshotAsk{Volumes: []string{}, Group: true}, volume.ErrInvalid, "needs at least one"},
		"several":                {"", nil, volume.SnapshotAsk{Volumes: []string{"a", "b"}}, volume.ErrInvalid, "a snapshot needs one volume"},
		"a bad name":             {"", nil, volume.SnapshotAsk{Name: "a/b"}, volume.ErrInvalid, "slash"},
		"a volume being created": {"", func(c *camera) { c.provision("data", volume.Provisioning) }, volume.SnapshotAsk{}, volume.ErrRefused, `volume "data": creating has not finished`},
		"one being deleted":      {"", func(c *camera) { c.provision("data", volume.Deleting) }, volume.SnapshotAsk{}, volume.ErrRefused, "deleting has not finished"},
		"a plugin that is down":  {"", func(c *camera) { c.await = volume.Errorf(volume.ErrPluginUnavailable, "down"); c.view.Info.Driver = "" }, volume.SnapshotAsk{}, volume.ErrPluginUnavailable, "down"},
		"an unreadable secret":   {"", func(c *camera) { c.secrets = errDisk }, volume.SnapshotAsk{}, errDisk, "disk full"},
		"a full disk":            {"", func(c *camera) { c.failAt = c.updates + 1 }, volume.SnapshotAsk{}, errDisk, "disk full"},
		"two plugins": {"group", func(c *camera) {
			r := c.volumes["data"]
			r.Volume.ID, r.Volume.PluginID, r.Volume.ExternalID = "other", "nfs", "x"
			c.volumes["other"] = r
		}, volume.SnapshotAsk{Group: true, Volumes: []string{"data", "other"}}, volume.ErrRefused, `volume "data" is of plugin "ebs" and volume "other" of plugin "nfs"`},
	} {
		c := newCamera(t, strings.Fields(tt.caps)...)
		if tt.plan != nil {
			tt.plan(c)
		}
		if tt.ask.Name == "" {
			tt.ask.Name = "nightly"
		}
		if tt.ask.Volumes == nil {
			tt.ask.Volumes = []string{"data"}
		}
		_, err := c.service().Snapshot(t.Context(), tt.ask, minute)
		want(t, name, err, tt.kind, tt.words)
		if len(c.calls)+len(c.snapshots) > 0 {
			t.Errorf("%s: calls %q, intents %+v", name, c.calls, c.snapshots)
		}
	}
}

func (c *camera) provision(id string, p volume.Provision) {
	r := c.volumes[id]
	r.Volume.Provision = p
	c.volumes[id] = r
}

// TestSnapshotNameInUse checks that the agent refuses a name that an unfinished snapshot of another
// volume has.
func TestSnapshotNameInUse(t *testing.T) {
	c := newCamera(t)
	c.ripe = 9
	if _, err := c.take(t, 0); err != nil {
		t.Fatal(err)
	}
	r := c.volumes["data"]
	r.Volume.ID, r.Volume.ExternalID = "other", "vol-8"
	c.volumes["other"] = r
	_, err := c.service().Snapshot(t.Context(), volume.SnapshotAsk{Volumes: []string{"other"}, Name: "nightly"}, minute)
	want(t, "a name of another", err, volume.ErrRefused, `an earlier snapshot "nightly" of data has not finished`, "use another name")
}

// TestSnapshotGone checks a plugin that loses a snapshot during the wait. The agent then reports
// that the snapshot does not exist. If the plugin does not answer, the state of the snapshot is
// unknown.
func TestSnapshotGone(t *testing.T) {
	c := newCamera(t, "get")
	c.ripe = 9
	c.fails[call.GetSnapshot] = []error{refusal(call.GetSnapshot, "Internal"), refusal(call.GetSnapshot, "NotFound")}
	_, err := c.take(t, minute)
	want(t, "gone", err, nil, `plugin "ebs" no longer has snapshot "snap-1"`)
	if len(c.snapshots) != 0 {
		t.Errorf("intents %+v", c.snapshots)
	}
	c = newCamera(t, "get")
	c.ripe = 9
	c.fails[call.GetSnapshot] = []error{refusal(call.GetSnapshot, "Unimplemented")}
	_, err = c.take(t, minute)
	want(t, "not told", err, nil, `unknown whether snapshot "nightly" (id "snap-1") is ready`)
	if len(c.snapshots) != 1 {
		t.Errorf("intents %+v", c.snapshots)
	}
}

// TestSnapshotInterrupted checks that the intent stays if the caller cancels the request.
func TestSnapshotInterrupted(t *testing.T) {
	c := newCamera(t, "get")
	c.ripe = 9
	ctx, cancel := context.WithCancel(t.Context())
	c.planted = cancel
	_, err := c.service().Snapshot(ctx, volume.SnapshotAsk{Volumes: []string{"data"}, Name: "nightly"}, minute)
	if !errors.Is(err, context.Canceled) || len(c.snapshots) != 1 {
		t.Errorf("%v, %+v", err, c.snapshots)
	}
}

// TestGroupSnapshot checks that the agent locks the volumes of a group in order, and makes no other
// call for them during the snapshot. Later calls about the group contain the ids of its members.
func TestGroupSnapshot(t *testing.T) {
	c := newCamera(t, "group", "list")
	v := existing()
	v.ID, v.ExternalID = "a", "vol-8"
	c.mustRegister(t, v)
	c.calls, c.ripe = nil, 1
	ask := volume.SnapshotAsk{Group: true, Volumes: []string{"data", "a", "data"}, Name: "nightly"}
	made, err := c.service().Snapshot(t.Context(), ask, minute)
	if err != nil || made.ID != "group-1" || !made.Ready || len(made.Snapshots) != 2 || len(c.snapshots) != 0 {
		t.Errorf("%v, %+v, %+v", err, made, c.snapshots)
	}
	equal(t, "calls", c.calls, []string{"CreateVolumeGroupSnapshot nightly of [vol-8 vol-9], 2 held, 1 secrets", "GetVolumeGroupSnapshot group-1[m1 m2], 0 held, 1 secrets"})

	v.ID, v.ExternalID, v.Secrets = "b", "vol-7", map[string]call.SecretRef{"key": {File: "/other"}}
	c.mustRegister(t, v)
	ask.Volumes = []string{"data", "b"}
	_, err = c.service().Snapshot(t.Context(), ask, minute)
	want(t, "two secrets of one name", err, volume.ErrInvalid, `different secrets "key"`, "--secret key=file:PATH")
	ask.Secrets = map[string]call.SecretRef{"key": {File: "/this"}}
	if _, err = c.service().Snapshot(t.Context(), ask, minute); err != nil {
		t.Error(err)
	}
}
