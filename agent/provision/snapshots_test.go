package provision_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestSnapshotsPaged checks that the agent reads all pages of a listing. It must restart the
// listing when the plugin no longer accepts the page token.
func TestSnapshotsPaged(t *testing.T) {
	c := newCamera(t, "list")
	c.pages = [][]call.Snapshot{{{ID: "s1"}, {ID: "s2"}}, {}, {{ID: "s3", Ready: true}}}
	aborted := refusal(call.ListSnapshots, "Aborted")
	c.fails[call.ListSnapshots] = []error{nil, nil, aborted}
	list, err := c.service().Snapshots(t.Context(), volume.SnapshotsAsk{VolumeID: "data"})
	if err != nil || len(list.Listed) != 3 || list.Listed[2].ID != "s3" || list.Listed[0].PluginID != "ebs" {
		t.Errorf("%v, %+v", err, list)
	}
	equal(t, "calls", c.calls, []string{
		"ListSnapshots vol-9, 0 held, 1 secrets", "ListSnapshots vol-91, 0 held, 1 secrets", "ListSnapshots vol-92, 0 held, 1 secrets",
		"ListSnapshots vol-9, 0 held, 1 secrets", "ListSnapshots vol-91, 0 held, 1 secrets", "ListSnapshots vol-92, 0 held, 1 secrets",
	})
	c.fails[call.ListSnapshots] = []error{nil, aborted, nil, aborted}
	_, err = c.service().Snapshots(t.Context(), volume.SnapshotsAsk{PluginID: "ebs"})
	var ce *volume.CallError
	if !errors.As(err, &ce) || ce.Code != "Aborted" {
		t.Errorf("a token that is never good: %v", err)
	}
}

// TestSnapshotsWithoutEnd checks that a listing fails if the plugin returns the same token again
// and again.
func TestSnapshotsWithoutEnd(t *testing.T) {
	c := newCamera(t, "list")
	o := c.options()
	o.Plugins = endless{c}
	_, err := provision.New(o).Snapshots(t.Context(), volume.SnapshotsAsk{PluginID: "ebs"})
	want(t, "endless", err, nil, `plugin "ebs" returns an endless list for ListSnapshots: it returned token "1" twice`, "volctl plugin logs ebs")
}

// TestSnapshotsNotListed checks that a note names a plugin that cannot list snapshots. The listing
// still shows the unfinished snapshots.
func TestSnapshotsNotListed(t *testing.T) {
	c := newCamera(t)
	c.ripe = 9
	if _, err := c.take(t, 0); err != nil {
		t.Fatal(err)
	}
	c.calls = nil
	list, err := c.service().Snapshots(t.Context(), volume.SnapshotsAsk{PluginID: "ebs"})
	if err != nil || len(list.Listed) != 0 || len(list.Pending) != 1 || list.Pending[0].ID != "snap-1" || len(c.calls) != 0 {
		t.Errorf("%v, %+v, %q", err, list, c.calls)
	}
	equal(t, "notes", list.Notes, []string{`plugin "ebs" cannot list its snapshots, so only unfinished ones are shown`})

	c.view.Info.Caps.GetSnapshot, c.ripe = true, 0
	if list, err = c.service().Snapshots(t.Context(), volume.SnapshotsAsk{PluginID: "ebs"}); err != nil || len(list.Listed) != 1 || !list.Listed[0].Ready || len(c.snapshots) != 0 {
		t.Errorf("asked one by one: %v, %+v, %+v", err, list, c.snapshots)
	}

	c.view.Ready, c.view.State = false, "backing-off"
	if list, err = c.service().Snapshots(t.Context(), volume.SnapshotsAsk{}); err != nil || len(list.Notes) != 1 {
		t.Errorf("%v, %+v", err, list)
	}
	equal(t, "notes", list.Notes, []string{`plugin "ebs" is backing-off, so its snapshots are not shown`})
}

func TestSnapshotsRefused(t *testing.T) {
	c := newCamera(t, "none")
	_, err := c.service().Snapshots(t.Context(), volume.SnapshotsAsk{PluginID: "ebs"})
	want(t, "it cannot", err, volume.ErrRefused, `plugin "ebs" cannot make snapshots`)
	_, err = c.service().Snapshots(t.Context(), volume.SnapshotsAsk{PluginID: "nfs"})
	want(t, "no plugin", err, volume.ErrNotFound, `no plugin "nfs"`)
	_, err = c.service().Snapshots(t.Context(), volume.SnapshotsAsk{VolumeID: "gone"})
	want(t, "no volume", err, volume.ErrNotFound, `no volume "gone"`)
	_, err = c.service().Snapshots(t.Context(), volume.SnapshotsAsk{PluginID: "nfs", VolumeID: "data"})
	want(t, "of another plugin", err, volume.ErrInvalid, `volume "data" is of plugin "ebs"`)
	if len(c.calls) > 0 {
		t.Errorf("calls %q", c.calls)
	}
}

// TestGroupIsListed checks that a group is finished when the listing shows each of its snapshots as
// ready.
func TestGroupIsListed(t *testing.T) {
	c := newCamera(t, "group", "list")
	v := existing()
	v.ID, v.ExternalID = "a", "vol-8"
	c.mustRegister(t, v)
	c.ripe = 9
	if _, err := c.service().Snapshot(t.Context(), volume.SnapshotAsk{Group: true, Volumes: []string{"data", "a"}, Name: "g"}, 0); err != nil {
		t.Fatal(err)
	}
	members := c.group(true).Snapshots
	for i, tt := range []struct {
		listed  []call.Snapshot
		pending int
	}{{members[:1], 1}, {c.group(false).Snapshots, 1}, {members, 0}} {
		c.pages = [][]call.Snapshot{tt.listed}
		list, err := c.service().Snapshots(t.Context(), volume.SnapshotsAsk{PluginID: "ebs"})
		if err != nil || len(list.Pending) != tt.pending || len(c.snapshots) != tt.pending {
			t.Errorf("listing %d: %v, %+v, %+v", i, err, list, c.snapshots)
		}
	}
}

func TestDeleteSnapshot(t *testing.T) {
	c := newCamera(t)
	c.ripe = 9
	if _, err := c.take(t, 0); err != nil {
		t.Fatal(err)
	}
	c.calls = nil
	at := volume.SnapshotAt{PluginID: "ebs", ID: "snap-1", Secrets: map[string]call.SecretRef{"k": {Env: "K"}}}
	c.fails[call.DeleteSnapshot] = []error{refusal(call.DeleteSnapshot, "Aborted"), refusal(call.DeleteSnapshot, "Aborted")}
	if err := c.service().DeleteSnapshot(t.Context(), at, minute); err != nil || len(c.calls) != 3 || len(c.snapshots) != 0 {
		t.Errorf("%v, %q, %+v", err, c.calls, c.snapshots)
	}
	for code, tt := range map[string]struct {
		kind  error
		words string
	}{
		"FailedPrecondition": {volume.ErrRefused, `plugin "ebs" refuses the request: no`},
		"NotFound":           {volume.ErrNotFound, "not found"},
		"InvalidArgument":    {volume.ErrInvalid, "refuses the request: no"}, // the snapshot is in a group
		"DeadlineExceeded":   {volume.ErrTimeout, `unknown whether snapshot "snap-1" still exists`},
		"Internal":           {nil, "volctl volume snapshot delete ebs snap-1 -y"},
	} {
		c.fails[call.DeleteSnapshot] = []error{refusal(call.DeleteSnapshot, code)}
		want(t, code, c.service().DeleteSnapshot(t.Context(), at, minute), tt.kind, tt.words)
	}
	c.view.Info.Caps.Snapshot = false
	want(t, "it cannot", c.service().DeleteSnapshot(t.Context(), at, minute), volume.ErrRefused, `plugin "ebs" cannot make snapshots`)
	at.PluginID = "nfs"
	want(t, "no plugin", c.service().DeleteSnapshot(t.Context(), at, minute), volume.ErrNotFound, `no plugin "nfs"`)
}

// TestDeleteNone checks the deletion of an unknown snapshot. CSI plugins report success in this
// case, so the agent first asks the plugin whether the snapshot exists. If the agent itself has
// stored the id of the snapshot, the delete succeeds and the agent forgets the snapshot.
func TestDeleteNone(t *testing.T) {
	c := newCamera(t, "get", "group")
	at := volume.SnapshotAt{PluginID: "ebs", ID: "snap-7"}
	want(t, "none", c.service().DeleteSnapshot(t.Context(), at, 0), volume.ErrNotFound, `plugin "ebs" has no snapshot "snap-7"`, "volctl volume snapshot list --plugin ebs")
	equal(t, "calls", c.calls, []string{"GetSnapshot snap-7, 0 held, 0 secrets"})
	group := volume.SnapshotAt{PluginID: "ebs", ID: "group-7", Group: true}
	c.fails[call.GetGroupSnapshot] = []error{refusal(call.GetGroupSnapshot, "NotFound")}
	want(t, "no group", c.service().DeleteSnapshot(t.Context(), group, 0), volume.ErrNotFound, `plugin "ebs" has no group snapshot "group-7"`)

	c.fails[call.GetSnapshot] = []error{refusal(call.GetSnapshot, "PermissionDenied")}
	if err := c.service().DeleteSnapshot(t.Context(), at, 0); err != nil {
		t.Errorf("it does not say: %v", err)
	}
	begun := volume.SnapshotIntent{PluginID: "ebs", Driver: c.view.Info.Driver, Name: "x", ID: "snap-7"}
	c.snapshots[begun.Key()] = begun
	if err := c.service().DeleteSnapshot(t.Context(), at, 0); err != nil || len(c.snapshots) > 0 {
		t.Errorf("it was begun: %v, %+v", err, c.snapshots)
	}
}

// TestDeleteByName checks that the agent refuses to delete a snapshot by name while it does not
// know the id of the snapshot. Such a delete would appear to succeed. When the agent knows the id,
// the name is enough.
func TestDeleteByName(t *testing.T) {
	c := newCamera(t)
	c.fails[call.CreateSnapshot] = []error{refusal(call.CreateSnapshot, "Internal")}
	_, err := c.take(t, 0)
	want(t, "uncertain", err, nil, "it is unknown")
	at := volume.SnapshotAt{PluginID: "ebs", ID: "nightly"}
	c.calls = nil
	want(t, "no id yet", c.service().DeleteSnapshot(t.Context(), at, 0), volume.ErrRefused, `cannot delete "nightly": it is the name of a snapshot without a known id at plugin "ebs"`,
		"to get its id: volctl volume snapshot create data nightly", "volctl volume snapshot delete ebs nightly --forget")
	c.ripe = 9
	if _, err := c.take(t, 0); err != nil {
		t.Fatal(err)
	}
	left, err := c.service().ForgetSnapshot(t.Context(), at)
	if err != nil || len(c.snapshots) != 0 {
		t.Errorf("%v, %+v", err, c.snapshots)
	}
	equal(t, "left", left, []string{`plugin "ebs" has "snap-1"`})
	_, err = c.service().ForgetSnapshot(t.Context(), at)
	want(t, "twice", err, volume.ErrNotFound, `no unfinished snapshot "nightly" of plugin "ebs"`)

	c.calls = nil
	if err := c.service().DeleteSnapshot(t.Context(), at, 0); err != nil {
		t.Errorf("by its name: %v", err)
	}
	equal(t, "calls", c.calls, []string{"DeleteSnapshot snap-1, 0 held, 0 secrets"})
	equal(t, "names", len(c.names), 0)
}

// TestSnapshotNames checks that a user can give a snapshot's name wherever an id is allowed. If a
// text is both a name and an id, the agent uses it as an id. If several snapshots have the same
// name, the error lists their ids.
func TestSnapshotNames(t *testing.T) {
	c := newCamera(t, "get")
	if _, err := c.take(t, minute); err != nil {
		t.Fatal(err)
	}
	var asked []string
	c.create = func(q call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		asked = append(asked, q.SnapshotID)
		return call.CreateVolumeResult{ExternalID: "vol-" + q.Name}, nil
	}
	restored := func(id, snapshot string) error {
		v := spec()
		v.ID, v.SnapshotID = id, snapshot
		_, _, err := c.service().Create(t.Context(), v, false)
		return err
	}
	for i, snapshot := range []string{"nightly", "snap-1", "elsewhere"} {
		if err := restored(fmt.Sprintf("r%d", i), snapshot); err != nil {
			t.Errorf("from %q: %v", snapshot, err)
		}
	}
	equal(t, "asked for", asked, []string{"snap-1", "snap-1", "elsewhere"})
	equal(t, "the record", c.volumes["r0"].Volume.SnapshotID, "nightly")

	other := volume.SnapshotName{PluginID: "ebs", Driver: "ebs.csi", Name: "nightly", ID: "snap-2"}
	c.names[other.Key()] = other
	want(t, "two of a name", restored("r9", "nightly"), volume.ErrInvalid, `"nightly" is the name of 2 snapshots of plugin "ebs", with the ids "snap-1", "snap-2"`, "give the id")
	other.Name, other.ID = "snap-1", "snap-3"
	c.names[other.Key()] = other
	if err := restored("r8", "snap-1"); err != nil || asked[len(asked)-1] != "snap-1" {
		t.Errorf("an id that is a name, too: %v, %q", err, asked)
	}
}

// TestDeleteGroup checks the delete of a group at a plugin that needs the ids of the members. The
// agent finds these ids in the plugin's list, or asks the plugin for the group.
func TestDeleteGroup(t *testing.T) {
	c := newCamera(t, "group", "list")
	c.pages = [][]call.Snapshot{{{ID: "x"}, {ID: "m1", GroupID: "group-1"}}, {{ID: "m2", GroupID: "group-1"}}}
	at := volume.SnapshotAt{PluginID: "ebs", ID: "group-1", Group: true}
	if err := c.service().DeleteSnapshot(t.Context(), at, 0); err != nil {
		t.Error(err)
	}
	c.view.Info.Caps.ListSnapshots = false
	if err := c.service().DeleteSnapshot(t.Context(), at, 0); err != nil {
		t.Error(err)
	}
	equal(t, "calls", c.calls, []string{
		"ListSnapshots , 0 held, 0 secrets", "ListSnapshots 1, 0 held, 0 secrets", "DeleteVolumeGroupSnapshot group-1[m1 m2], 0 held, 0 secrets",
		"GetVolumeGroupSnapshot group-1[], 0 held, 0 secrets", "DeleteVolumeGroupSnapshot group-1[m1 m2], 0 held, 0 secrets",
	})
	c.fails[call.GetGroupSnapshot] = []error{refusal(call.GetGroupSnapshot, "InvalidArgument")}
	want(t, "it must be told", c.service().DeleteSnapshot(t.Context(), at, 0), volume.ErrInvalid, "needs the snapshots of the group", "give their ids")
	at.Members, c.calls = []string{"m9"}, nil
	if err := c.service().DeleteSnapshot(t.Context(), at, 0); err != nil {
		t.Error(err)
	}
	equal(t, "calls", c.calls, []string{"DeleteVolumeGroupSnapshot group-1[m9], 0 held, 0 secrets"})
	got, err := c.service().GroupSnapshot(t.Context(), at)
	if err != nil || got.ID != "group-1" {
		t.Errorf("%v, %+v", err, got)
	}
	c.fails[call.GetGroupSnapshot] = []error{refusal(call.GetGroupSnapshot, "NotFound")}
	_, err = c.service().GroupSnapshot(t.Context(), at)
	want(t, "no group", err, volume.ErrNotFound, "not found")
}
