package provision_test

import (
	"context"
	"errors"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// copies returns a camera whose plugin can clone. It also returns the CreateVolume requests that
// the plugin receives.
func copies(t *testing.T) (c *camera, asked *[]call.CreateVolumeRequest) {
	t.Helper()
	c, asked = newCamera(t, "get"), &[]call.CreateVolumeRequest{}
	c.view.Info.Caps.Clone = true
	r := c.volumes["data"]
	r.Volume.ID = "source"
	delete(c.volumes, "data")
	c.volumes["source"] = r
	c.create = func(q call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		*asked = append(*asked, q)
		if rest := c.fails[call.CreateVolume]; len(rest) > 0 {
			c.fails[call.CreateVolume] = rest[1:]
			return call.CreateVolumeResult{}, rest[0]
		}
		return call.CreateVolumeResult{ExternalID: "vol-new"}, nil
	}
	return c, asked
}

func clone(of string) volume.Volume {
	v := spec()
	v.CloneID = of
	return v
}

// TestCloneOf checks that a file can name the clone source by its volume id on this host or by its
// external id. The record keeps the id from the file.
func TestCloneOf(t *testing.T) {
	for of, want := range map[string]string{"source": "vol-9", "vol-9": "vol-9", "vol-unknown": "vol-unknown"} {
		c, asked := copies(t)
		r, _, err := c.service().Create(t.Context(), clone(of), false)
		if err != nil || len(*asked) != 1 || (*asked)[0].CloneID != want || r.Volume.CloneID != of {
			t.Errorf("%s: %v, %+v, %+v", of, err, *asked, r.Volume)
		}
		if _, ch, err := c.service().Create(t.Context(), clone(of), false); err != nil || ch.Outcome != volume.Unchanged {
			t.Errorf("%s again: %v, %+v", of, err, ch)
		}
	}
}

// TestSourceRefused checks that the agent refuses an unsuitable source before it calls the plugin
// or stores an intent.
func TestSourceRefused(t *testing.T) {
	fromSnapshot := spec()
	fromSnapshot.SnapshotID = "snap-1"
	for name, tt := range map[string]struct {
		spec  volume.Volume
		plan  func(*camera)
		kind  error
		words string
	}{
		"it cannot clone":    {clone("source"), func(c *camera) { c.view.Info.Caps.Clone = false }, volume.ErrRefused, `plugin "ebs" cannot clone volumes`},
		"it cannot snapshot": {fromSnapshot, func(c *camera) { c.view.Info.Caps.Snapshot = false }, volume.ErrRefused, `plugin "ebs" cannot make snapshots`},
		"of another driver": {clone("source"), func(c *camera) {
			r := c.volumes["source"]
			r.Volume.Driver, r.Volume.PluginID = "nfs.csi", "nfs"
			c.volumes["source"] = r
		}, volume.ErrRefused, `volume "source" belongs to plugin "nfs", but plugin "ebs" can clone only its own`},
		"being deleted": {clone("source"), func(c *camera) { c.provision("source", volume.Deleting) }, volume.ErrRefused, `cannot clone volume "source"`},
		"not ready": {fromSnapshot, func(c *camera) {
			i := volume.SnapshotIntent{PluginID: "ebs", Driver: "ebs.csi", Name: "n", ID: "snap-1", Volumes: []string{"source"}, Sources: []string{"vol-9"}}
			c.snapshots[i.Key()] = i
			c.at["n"] = &call.Snapshot{ID: "snap-1"}
			c.ripe = 9
		}, volume.ErrRefused, `snapshot "snap-1" of volume "source" is not ready yet`},
	} {
		for _, dry := range []bool{true, false} {
			c, asked := copies(t)
			tt.plan(c)
			_, _, err := c.service().Create(t.Context(), tt.spec, dry)
			want(t, name, err, tt.kind, tt.words)
			if _, left := c.volumes["data"]; left || len(*asked) > 0 {
				t.Errorf("%s: %+v was asked for, left: %t", name, *asked, left)
			}
		}
	}
	c, _ := copies(t)
	c.volumes["data"] = volume.Record{Volume: volume.Volume{ID: "data", Provision: volume.Provisioning}}
	_, _, err := c.service().Create(t.Context(), clone("data"), false)
	want(t, "itself", err, volume.ErrInvalid, "cannot be a clone of itself")
}

// TestSourceIsReadyByNow checks that the agent accepts a snapshot that has become ready in the
// meantime, and deletes its intent.
func TestSourceIsReadyByNow(t *testing.T) {
	c, _ := copies(t)
	v := spec()
	v.SnapshotID = "snap-1"
	i := volume.SnapshotIntent{PluginID: "ebs", Driver: "ebs.csi", Name: "n", ID: "snap-1", Volumes: []string{"source"}, Sources: []string{"vol-9"}}
	c.snapshots[i.Key()] = i
	c.at["n"] = &call.Snapshot{ID: "snap-1"}
	if _, _, err := c.service().Create(t.Context(), v, false); err != nil || len(c.snapshots) != 0 {
		t.Errorf("%v, %+v", err, c.snapshots)
	}
}

// TestCreateTakesLong checks that the agent repeats the create while the plugin copies data, until
// the wait ends. The intent stays after the wait.
func TestCreateTakesLong(t *testing.T) {
	aborted, late := refusal(call.CreateVolume, "Aborted"), refusal(call.CreateVolume, "DeadlineExceeded")
	c, asked := copies(t)
	c.fails[call.CreateVolume] = []error{aborted, late, aborted}
	if _, _, err := c.service().CreateWithin(t.Context(), clone("source"), false, minute); err != nil || len(*asked) != 4 || len(c.paused) != 3 {
		t.Errorf("%v after %d calls", err, len(*asked))
	}

	c, asked = copies(t)
	c.fails[call.CreateVolume], c.patience = []error{aborted, aborted, aborted}, 2
	_, _, err := c.service().CreateWithin(t.Context(), clone("source"), false, minute)
	want(t, "too late", err, volume.ErrTimeout, "after 1m0s: CreateVolume: Aborted: no", "keeps the intent", "repeat the create")
	if r := c.volumes["data"]; r.Volume.Provision != volume.Provisioning || len(*asked) != 2 {
		t.Errorf("%+v after %d calls", r.Volume, len(*asked))
	}

	for name, tt := range map[string]struct {
		spec  volume.Volume
		err   error
		calls int
	}{
		"empty, and the plugin is at it":        {spec(), aborted, 2},
		"empty, and the plugin does not answer": {spec(), late, 1},
		"a copy that fails":                     {clone("source"), refusal(call.CreateVolume, "Internal"), 1},
	} {
		c, asked := copies(t)
		c.fails[call.CreateVolume] = []error{tt.err}
		_, _, err := c.service().CreateWithin(t.Context(), tt.spec, false, minute)
		if (err == nil) != (tt.calls == 2) || len(*asked) != tt.calls {
			t.Errorf("%s: %v after %d calls", name, err, len(*asked))
		}
	}

	c, _ = copies(t)
	c.fails[call.CreateVolume] = []error{aborted}
	ctx, cancel := context.WithCancel(t.Context())
	c.planted = cancel
	_, _, err = c.service().CreateWithin(ctx, clone("source"), false, minute)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestSourceIsMissing checks that no intent remains if the source does not exist.
func TestSourceIsMissing(t *testing.T) {
	fromSnapshot := spec()
	fromSnapshot.SnapshotID = "snap-1"
	for words, v := range map[string]volume.Volume{`plugin "ebs" has no snapshot "snap-1": no`: fromSnapshot, `plugin "ebs" has no volume "gone" to clone: no`: clone("gone")} {
		c, _ := copies(t)
		c.fails[call.CreateVolume] = []error{refusal(call.CreateVolume, "NotFound")}
		_, _, err := c.service().CreateWithin(t.Context(), v, false, minute)
		want(t, "missing", err, volume.ErrNotFound, words)
		if _, left := c.volumes["data"]; left {
			t.Error("the intent is left")
		}
	}
}
