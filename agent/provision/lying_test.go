package provision_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestExpandAnsweredWithLess checks that an expansion fails if the plugin answers OK with a smaller
// size than requested.
func TestExpandAnsweredWithLess(t *testing.T) {
	w := sized(t)
	w.carriedOut(volume.Outcome{Capacity: 16})
	_, _, err := w.service().Expand(t.Context(), "data", 20, time.Minute)
	want(t, "less", err, nil, `plugin "ebs" answered OK, and volume "data" has 16B, not the 20B that were asked for; or it was withdrawn`)
	if v := w.volumes["data"].Volume; v.Capacity != 16 || v.CapacityMin != 16 || v.Expansion != (volume.Expansion{}) {
		t.Errorf("left is %+v", v)
	}
	w.carriedOut(volume.Outcome{Capacity: 18})
	if _, ch, err := w.service().Expand(t.Context(), "data", 18, time.Minute); err != nil || ch.Outcome != volume.Grown {
		t.Errorf("to what it can have: %v, %+v", err, ch)
	}
}

// TestCreateAnsweredWithNoSize checks that the agent does not store a size that no volume can have.
func TestCreateAnsweredWithNoSize(t *testing.T) {
	w := newWorld()
	w.create = func(call.CreateVolumeRequest) (call.CreateVolumeResult, error) {
		return call.CreateVolumeResult{ExternalID: "vol-1", Capacity: -5}, nil
	}
	if r, _, err := w.service().Create(t.Context(), spec(), false); err != nil || r.Volume.Capacity != 0 {
		t.Errorf("created: %v, %+v", err, r.Volume)
	}
}

// TestSnapshotOfAnotherMeanwhile checks a snapshot that waits while its volume is deregistered and
// other storage is registered under the same id. The agent must not send the secrets of the new
// volume to the plugin of the snapshot.
func TestSnapshotOfAnotherMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*camera){
		"another storage": func(c *camera) {
			r := c.volumes["data"]
			r.Volume.ExternalID, r.Volume.PluginID, r.Volume.Driver = "other", "nfs", "nfs.csi"
			c.volumes["data"] = r
		},
		"deregistered": func(c *camera) { delete(c.volumes, "data") },
	} {
		c := newCamera(t, "get")
		c.fails[call.CreateSnapshot] = []error{refusal(call.CreateSnapshot, "Aborted")}
		c.planted = func() { change(c) }
		_, err := c.take(t, time.Minute)
		want(t, name, err, volume.ErrRefused, `volume "data" was deregistered meanwhile`, "so the agent keeps the intent")
		equal(t, name+": calls", c.calls, []string{"CreateSnapshot nightly of vol-9, 1 held, 1 secrets"})
	}
}

// pageless is a plugin that returns a new token for every page, without end.
type pageless struct {
	*camera
	n *int
}

func (p pageless) Provisioner(string) (call.Caller, error) {
	h := p.handlers()
	call.HandleDo(h, p.ListSnapshots)
	return h, nil
}

func (p pageless) ListSnapshots(ctx context.Context, _ call.ListSnapshotsRequest) (call.SnapshotPage, error) {
	*p.n++
	return call.SnapshotPage{Next: strconv.Itoa(*p.n)}, ctx.Err()
}

// TestSnapshotsOfEverNewPages checks that the agent stops a listing if the plugin never stops
// returning new pages.
func TestSnapshotsOfEverNewPages(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, n := newCamera(t, "list"), 0
	o := c.options()
	o.Plugins = pageless{c, &n}
	_, err := provision.New(o).Snapshots(ctx, volume.SnapshotsAsk{PluginID: "ebs"})
	want(t, "ever new", err, nil, "it returned 10000 pages")
}

// TestCreateDroppedMeanwhile checks a create whose record is deleted while the plugin copies data.
// The create must not restore the record.
func TestCreateDroppedMeanwhile(t *testing.T) {
	c, asked := copies(t)
	c.fails[call.CreateVolume] = []error{refusal(call.CreateVolume, "Aborted")}
	v := clone("source")
	c.planted = func() {
		if _, err := c.service().Deregister(t.Context(), v.ID, true); err != nil {
			t.Errorf("deregister: %v", err)
		}
	}
	_, _, err := c.service().CreateWithin(t.Context(), v, false, time.Minute)
	want(t, "dropped", err, volume.ErrRefused, "was deregistered meanwhile", "may have a volume named")
	if _, ok := c.volumes[v.ID]; ok || len(*asked) != 1 {
		t.Errorf("it is back: %v, after %d calls", ok, len(*asked))
	}
}
