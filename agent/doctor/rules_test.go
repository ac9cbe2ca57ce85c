package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

var now = time.Date(2026, 3, 10, 3, 0, 0, 0, time.UTC)

const csi = "/d/csi"

func identity(id uint64) *volume.MountIdentity {
	return &volume.MountIdentity{Namespace: 1, Boot: "boot", Device: "7:0", Root: "/", FSType: "ext4", ID: id}
}

func seen(m *volume.MountIdentity) volume.Sight {
	return volume.Sight{Seen: volume.SeenMount, Identity: *m}
}

var mode = call.Capability{Access: "single-node-multi-writer", Attachment: call.FileSystem}

// mounted returns the volume "data" of the plugin "p", with claims of the allocs a and b. The
// observed state matches the record.
func mounted() Volume {
	claim := func(alloc string, seq, id uint64) volume.Claim {
		return volume.Claim{
			Alloc: alloc, Seq: seq, Wanted: true, State: volume.Mounted, Terms: volume.Terms{Mode: mode}, Since: now.Add(-time.Hour),
			Target: csi + "/p/per-alloc/" + alloc + "/data", Published: volume.Present, Mount: identity(id),
		}
	}
	a, b := claim("a", 1, 11), claim("b", 2, 12)
	b.At, b.Bound, b.BoundMount = "/srv/b", volume.Present, identity(13)
	return Volume{
		Record: volume.Record{
			Volume: volume.Volume{ID: "data", PluginID: "p", Driver: "d", ExternalID: "x", Capabilities: []call.Capability{mode}},
			Node: volume.NodeSide{
				Mode: &volume.Mode{Capability: mode}, Uses: volume.Uses{Stage: true}, Staged: volume.Present, StagingPath: csi + "/p/staging/data",
				Mount: identity(10), Boot: "boot", Devices: []volume.Device{{Number: "7:0"}}, Seq: 2,
			},
			Claims: map[string]volume.Claim{"a": a, "b": b},
		},
		Observed: volume.Observed{
			Boot: "boot", Plugin: plugin.View{Known: true, Ready: true, State: "ready", Info: plugin.Info{Caps: plugin.Caps{Stage: true}}}, Staging: seen(identity(10)),
			Targets: map[string]volume.Sight{"a": seen(a.Mount), "b": seen(b.Mount)}, Binds: map[string]volume.Sight{"b": seen(b.BoundMount)}, Watched: map[string]volume.Sight{},
		},
		Owners: map[string]volume.OwnerView{}, Blocks: map[string]Block{"7:0": {Name: "loop0", Backing: "/img"}}, Beneath: map[string]Contents{},
	}
}

// well returns the data of a host without problems.
func well() Picture {
	v := mounted()
	return Picture{
		Now: now, Root: csi, Volumes: []Volume{v},
		Database: Database{Dir: "/d", Disk: Disk{Total: 100 << 30, Free: 50 << 30, Inodes: 1e6, FreeInodes: 1e6}},
		Plugins:  []Plugin{{ID: "p", View: v.Observed.Plugin}},
		Mounts: []Mounted{
			{Path: "/", Device: "8:1", FSType: "ext4"}, {Path: csi}, {Path: csi + "/p/staging/data", Device: "7:0"}, {Path: csi + "/p/per-alloc/a/data", Device: "7:0"},
			{Path: csi + "/p/per-alloc/b/data", Device: "7:0"}, {Path: "/srv/b", Device: "7:0"}, {Path: csi + "/p/staging/.canary", Canary: true},
		},
		System: System{Namespace: 1, Init: 1, Unit: "volagent.service", State: "enabled"},
	}
}

// TestWell checks that a host without problems has no findings.
func TestWell(t *testing.T) {
	if got := Judge(well()); len(got) != 0 {
		t.Errorf("found %+v", got)
	}
}

// TestRules checks the findings on a host without problems after a single change to the host.
func TestRules(t *testing.T) {
	staging := csi + "/p/staging/data"
	sight := func(s volume.Seen, detail string) volume.Sight {
		return volume.Sight{Seen: s, Detail: detail, Identity: *identity(10)}
	}
	claim := func(p *Picture, alloc string, change func(*volume.Claim)) {
		c := p.Volumes[0].Record.Claims[alloc]
		change(&c)
		p.Volumes[0].Record.Claims[alloc] = c
	}
	free := func(p *Picture) {
		v := &p.Volumes[0]
		v.Record.Claims, v.Record.Node = nil, volume.NodeSide{}
		v.Observed.Targets, v.Observed.Binds, v.Observed.Staging = nil, nil, volume.Sight{}
		p.Mounts = p.Mounts[:2]
	}
	failing := func(p *Picture, kind call.Method, tries int) {
		p.Volumes[0].Attempt = &volume.Attempt{
			Action: volume.Action{Kind: kind, Alloc: "a"}, Tries: tries, First: now.Add(-time.Minute), Next: now.Add(time.Second),
			Err: &volume.CallError{Step: string(kind), Code: "Internal", Message: "no way", Retry: volume.RetryBackoff},
		}
	}
	for name, c := range map[string]struct {
		spoil func(p *Picture)
		want  []string // the ids of the expected findings
		says  string   // a text that the finding must contain
		fix   bool     // whether --fix can fix the first finding
	}{
		"commit fails":     {func(p *Picture) { p.Database.Fault = errors.New("no space") }, []string{"db-commit:state.db"}, "no space", false},
		"check fails":      {func(p *Picture) { p.Database.Check = errors.New("one\ntwo\nthree") }, []string{"db-check:state.db"}, "one, and 2 more", false},
		"commit and check": {func(p *Picture) { p.Database.Check, p.Database.Fault = errors.New("x"), errors.New("y") }, []string{"db-commit:state.db"}, "y", false},
		"no log":           {func(p *Picture) { p.Database.NoLog = errors.New("it is a directory") }, []string{"db-log:state.log"}, "directory", false},
		"foreign file":     {func(p *Picture) { p.Database.Foreign = []string{"/d/state.db.foreign-1"} }, []string{"db-foreign-file:/d/state.db.foreign-1"}, "rm /d/state.db.foreign-1", false},
		"file replaced": {func(p *Picture) {
			p.Database.Foreign, p.Database.Refused, p.Database.Fault = []string{"/d/state.db.foreign-1"}, "/d/state.db.foreign-1", errors.New("replaced")
		}, []string{"db-foreign-file:/d/state.db.foreign-1"}, "systemctl restart volagent", false},
		"damaged file":          {func(p *Picture) { p.Database.Kept = []string{"/d/state.db.damaged-1"} }, []string{"db-damaged-file:/d/state.db.damaged-1"}, "rm /d/state.db.damaged-1", false},
		"backup":                {func(p *Picture) { p.Database.Old = []string{"/d/state.db.schema-1"} }, []string{"db-backup-file:/d/state.db.schema-1"}, "rm ", false},
		"lost, none held":       {func(p *Picture) { p.Database.Loss.At = now }, nil, "", false},
		"lost, some held":       {func(p *Picture) { p.Database.Loss.At = now; claim(p, "a", func(c *volume.Claim) { c.Adopted = true }) }, []string{"db-lost:state.db"}, "Adopted claims that still exist: 1", false},
		"disk full":             {func(p *Picture) { p.Database.Disk.Free = 1 << 20 }, []string{"disk-full:/d"}, "1.0MiB left, of 100.0GiB", false},
		"disk nearly full":      {func(p *Picture) { p.Database.Disk.Free = 500 << 20 }, []string{"disk-full:/d"}, "500.0MiB left", false},
		"small disk, half full": {func(p *Picture) { p.Database.Disk = Disk{Total: 100 << 20, Free: 50 << 20} }, nil, "", false},
		"no inodes":             {func(p *Picture) { p.Database.Disk.FreeInodes = 3 }, []string{"disk-full:/d"}, "3 inodes", false},
		"disk unknown":          {func(p *Picture) { p.Database.Disk = Disk{Err: ErrSlow} }, []string{"not-looked:/d"}, "in time", false},
		"mounts unread":         {func(p *Picture) { p.MountsErr = errors.New("EIO") }, []string{"not-looked:mounts"}, "EIO", false},
		"leftovers unread":      {func(p *Picture) { p.LeftoversErr = errors.New("EIO") }, []string{"not-looked:" + csi}, "EIO", false},
		"halted for a data dir": {func(p *Picture) { p.Halt, p.OtherDataDir = "another data dir", "/d" }, []string{"agent-halted:agent"}, "volagent inspect --data-dir /d", false},
		"halted":                {func(p *Picture) { p.Halt = "another namespace" }, []string{"agent-halted:agent"}, "another namespace", false},
		"namespace":             {func(p *Picture) { p.System.Init = 2 }, []string{"host-namespace:mnt"}, "process 1", false},
		"namespace unknown":     {func(p *Picture) { p.System.Init = 0 }, nil, "", false},
		"not enabled":           {func(p *Picture) { p.System.State = "disabled" }, []string{"host-unit:volagent.service"}, "systemctl enable volagent.service", false},
		"helper":                {func(p *Picture) { p.System.Helper = "there is no /sbin/mount.csi" }, []string{"host-helper:mount.csi"}, "no /sbin", false},

		"staged mount missing": {func(p *Picture) { p.Volumes[0].Observed.Staging = volume.Sight{} }, []string{"mount-missing:" + staging}, "volctl volume status data", true},
		"target missing, with data": {func(p *Picture) {
			p.Volumes[0].Observed.Targets["a"] = volume.Sight{}
			p.Volumes[0].Beneath[csi+"/p/per-alloc/a/data"] = Contents{Kind: "directory", Holds: `"x"`}
		}, []string{"mount-missing:" + csi + "/p/per-alloc/a/data", "leftover-data:" + csi + "/p/per-alloc/a/data"}, "nothing is mounted", true},
		"to be made again": {func(p *Picture) {
			claim(p, "a", func(c *volume.Claim) { c.Published, c.Mount = volume.Failed, nil })
			p.Volumes[0].Observed.Targets["a"] = volume.Sight{}
		}, []string{"mount-missing:" + csi + "/p/per-alloc/a/data"}, "nothing is mounted", true},
		"bind missing":    {func(p *Picture) { p.Volumes[0].Observed.Binds["b"] = volume.Sight{} }, []string{"mount-missing:/srv/b"}, "bound for b", true},
		"another at /srv": {func(p *Picture) { p.Volumes[0].Observed.Binds["b"] = seen(identity(99)) }, []string{"mount-other:/srv/b"}, "umount /srv/b", false},
		"another file behind a node": {func(p *Picture) {
			claim(p, "a", func(c *volume.Claim) { c.Mount.Backing = "/d/vol-a/image" })
			other := seen(p.Volumes[0].Record.Claims["a"].Mount)
			other.Identity.Backing = "/d/vol-b/image"
			p.Volumes[0].Observed.Targets["a"] = other
		}, []string{"mount-other:" + csi + "/p/per-alloc/a/data"}, "shows /d/vol-b/image, not /d/vol-a/image", false},
		"the file behind a node, from an older record": {func(p *Picture) {
			s := p.Volumes[0].Observed.Targets["a"]
			s.Identity.Backing = "/d/vol-b/image"
			p.Volumes[0].Observed.Targets["a"] = s
		}, nil, "", false},
		"a look that failed": {func(p *Picture) { p.Volumes[0].Observed.Binds["b"] = sight(volume.SeenError, "EACCES") }, []string{"mount-unreadable:/srv/b"}, "EACCES", false},
		"all dead": {func(p *Picture) {
			o := &p.Volumes[0].Observed
			o.Staging, o.Targets["a"], o.Targets["b"], o.Binds["b"] = sight(volume.SeenDead, "ENOTCONN"), sight(volume.SeenDead, ""), sight(volume.SeenDead, ""), sight(volume.SeenDead, "")
		}, []string{"mount-dead:" + staging}, "ENOTCONN", true},
		"one target hangs": {func(p *Picture) { p.Volumes[0].Observed.Targets["b"] = sight(volume.SeenHung, "no answer since 3") }, []string{"mount-hung:" + csi + "/p/per-alloc/b/data"}, "no answer since 3", false},

		"unexplained": {func(p *Picture) {
			p.Mounts = append(p.Mounts, Mounted{Path: csi + "/p/staging/x", FSType: "tmpfs", Source: "s"})
		}, []string{"mount-unexplained:" + csi + "/p/staging/x"}, "s (tmpfs)", false},
		"elsewhere": {func(p *Picture) { p.Mounts = append(p.Mounts, Mounted{Path: "/d/csix", Device: "7:0"}) }, nil, "", false},
		"inside":    {func(p *Picture) { p.Mounts = append(p.Mounts, Mounted{Path: csi + "/p/per-alloc/a/data/in/side"}) }, []string{"mount-inside:" + csi + "/p/per-alloc/a/data/in/side"}, csi + "/p/per-alloc/a/data cannot be unmounted", false},
		"on the directory of an alloc": {func(p *Picture) {
			p.Mounts = append(p.Mounts, Mounted{Path: csi + "/p/per-alloc/a"})
		}, []string{"mount-unexplained:" + csi + "/p/per-alloc/a"}, "no record explains it", false},
		"of a test that runs": {func(p *Picture) {
			p.Tests = []Test{{Plugin: "p", Running: true, Paths: []string{csi + "/p/staging/t"}}}
			p.Mounts = append(p.Mounts, Mounted{Path: csi + "/p/staging/t"})
		}, nil, "", false},
		"of a test that ended": {func(p *Picture) { p.Tests = []Test{{Plugin: "p", Name: "volagent-test-1", Begun: now}} }, []string{"test-left:p"}, "volctl plugin test p", false},
		"empty leftover": {func(p *Picture) {
			p.Leftovers = []Leftover{{Path: csi + "/p/staging/x", Contents: Contents{Kind: "directory", Empty: true}}}
		}, []string{"leftover-empty:" + csi + "/p/staging/x"}, "rmdir", true},
		"full leftover": {func(p *Picture) {
			p.Leftovers = []Leftover{{Path: csi + "/p/staging/x", Contents: Contents{Kind: "directory", Holds: `"a"`}}}
		}, []string{"leftover-data:" + csi + "/p/staging/x"}, "never removes", false},
		"odd leftover": {func(p *Picture) { p.Leftovers = []Leftover{{Path: csi + "/p/staging/x", Err: ErrSlow}} }, []string{"not-looked:" + csi + "/p/staging/x"}, "in time", false},
		"staged, no claim": {func(p *Picture) {
			node := p.Volumes[0].Record.Node
			free(p)
			node.Mode, p.Volumes[0].Record.Node = nil, node
		}, []string{"staged-unclaimed:data"}, "has no claim", true},
		"stray note": {func(p *Picture) { p.Notes = []NoteFile{{Path: "/n", Alloc: "z", Record: p.Volumes[0].Record}} }, []string{"note-stray:/n"}, `"z"`, true},
		"no note": {func(p *Picture) {
			p.Notes = []NoteFile{{Path: "/n", Alloc: "a", Record: p.Volumes[0].Record, Claimed: true}}
		}, []string{"note-missing:/n"}, "no note", true},
		"bad note": {func(p *Picture) {
			p.Notes = []NoteFile{{Path: "/n", Alloc: "a", Record: p.Volumes[0].Record, Claimed: true, Bad: errors.New("cut")}}
		}, []string{"note-bad:/n"}, "cut", true},
		"nobody's": {func(p *Picture) { p.Notes = []NoteFile{{Path: "/n", Bad: errors.New("cut")}} }, []string{"note-bad:/n"}, "rm /n", false},
		"hiccup":   {func(p *Picture) { failing(p, call.NodeExpand, 1) }, nil, "", false},
		"stuck": {func(p *Picture) {
			claim(p, "a", func(c *volume.Claim) { c.Wanted, c.State = false, volume.Unpublishing })
			failing(p, call.NodeUnpublish, 4)
		}, []string{"volume-stuck:data"}, "no way (4 times, for 1m0s)", true},
		"no creation": {func(p *Picture) { free(p); p.Volumes[0].Record.Volume.Provision = volume.Provisioning }, []string{"volume-stuck:data"}, "creating", false},
		"waits": {func(p *Picture) {
			claim(p, "a", func(c *volume.Claim) { c.Wanted, c.State = false, volume.Unpublishing })
			delete(p.Volumes[0].Record.Claims, "b")
			p.Mounts = p.Mounts[:4]
			p.Volumes[0].Observed.Plugin.Ready, p.Volumes[0].Observed.Plugin.State = false, "backing-off"
		}, []string{"volume-waits:data"}, "backing-off", false},
		"owes": {func(p *Picture) {
			p.Volumes[0].Record.Node.PendingCalls = []volume.PendingCall{{Kind: call.NodeUnpublish, Path: "/x", Alloc: "z"}}
		}, []string{"volume-pending-calls:data"}, "NodeUnpublishVolume /x", true},
		"unseen": {func(p *Picture) {
			p.Volumes[0].Record.Node.Unseen = []volume.Unseen{{Path: "/x", Users: []string{"pid 7 sh"}}}
		}, []string{"volume-unseen:/x"}, "pid 7 sh", false},
		"refused": {func(p *Picture) {
			p.Volumes[0].Record.Volume.Expansion.Refused = volume.Refusal{Step: call.ControllerExpand, Size: 1 << 30, Code: "OutOfRange", Message: "no"}
		}, []string{"expansion-refused:data"}, "1GiB", false},
		"debt": {func(p *Picture) {
			p.Deregistered = []Deregistered{{Record: p.Volumes[0].Record, Since: now, Left: []string{"something"}}}
		}, []string{"volume-leftover:d/x"}, "something", true},
		"late":  {func(p *Picture) { p.Deregistered = []Deregistered{{Record: p.Volumes[0].Record, Since: now}} }, nil, "", false},
		"owner": {func(p *Picture) { p.Volumes[0].Owners["a"] = volume.OwnerView{Life: volume.LifeUnknown} }, []string{"owner-unknown:data/a"}, "unknown whether", false},
		"owner, for a moment": {func(p *Picture) {
			p.Volumes[0].Owners["a"] = volume.OwnerView{Life: volume.LifeUnknown}
			claim(p, "a", func(c *volume.Claim) { c.Since = now.Add(-time.Second) })
		}, nil, "", false},

		"no plugin":           {func(p *Picture) { p.Plugins = nil }, []string{"plugin-unknown:p"}, "volctl plugin init p", false},
		"down, in use":        {func(p *Picture) { p.Plugins[0].View = plugin.View{State: "backing-off", Reason: "it exited"} }, []string{"plugin-down:p"}, "backing off: it exited", false},
		"stopped, in use":     {func(p *Picture) { p.Plugins[0].View = plugin.View{State: "stopped", Stopped: true} }, []string{"plugin-stopped:p"}, "volctl plugin start p", false},
		"stopped, not needed": {func(p *Picture) { free(p); p.Plugins[0].View = plugin.View{State: "stopped", Stopped: true} }, nil, "", false},
		"starting":            {func(p *Picture) { p.Plugins[0].View = plugin.View{State: "starting"} }, nil, "", false},
		"starting again":      {func(p *Picture) { p.Plugins[0].View = plugin.View{State: "starting", Restarts: 3} }, []string{"plugin-down:p"}, "starting", false},
		"ready in part":       {func(p *Picture) { p.Plugins[0].View.Reason = "controller b is failed" }, []string{"plugin-down:p"}, "some parts", false},
		"pending":             {func(p *Picture) { p.Plugins[0].Pending = "its file was removed" }, []string{"plugin-pending:p"}, "its file was removed", false},
		"restarts":            {func(p *Picture) { p.Plugins[0].View.Restarts = 5 }, []string{"plugin-restarts:p"}, "5 times", false},
		"few restarts":        {func(p *Picture) { p.Plugins[0].View.Restarts = 4 }, nil, "", false},
		"two warnings":        {func(p *Picture) { p.Plugins[0].Warnings = []string{"a", "b"} }, []string{"plugin-warning:p", "plugin-warning:p#2"}, "a", false},
		"cannot unstage":      {func(p *Picture) { p.Plugins[0].View.Info.Caps.Stage = false }, []string{"plugin-capability:p/data"}, "STAGE_UNSTAGE_VOLUME", false},
		"a fence that cannot detach": {func(p *Picture) {
			p.Plugins[0].View.Fence, p.Plugins[0].View.Info.HasController = plugin.FenceDetach, true
		}, []string{"plugin-fence:p"}, "lacks PUBLISH_UNPUBLISH_VOLUME", false},
		"unit order": {func(p *Picture) {
			p.Plugins[0].Units = []Unit{{Name: "x.service", Asked: true, Before: []string{"shutdown.target"}}}
		}, []string{"plugin-unit-order:x.service"}, "Before=volagent.service", false},
		"unit in order": {func(p *Picture) {
			p.Plugins[0].Units = []Unit{{Name: "x.service", Asked: true, Before: []string{"volagent.service"}}}
		}, nil, "", false},
		"unit, nobody to ask": {func(p *Picture) { p.Plugins[0].Units = []Unit{{Name: "x.service"}} }, nil, "", false},
		"in docker":           {func(p *Picture) { p.Plugins[0].Runtime = "docker" }, nil, "", false},
		"in docker for docker": {func(p *Picture) {
			p.Plugins[0].Runtime = "docker"
			claim(p, "a", func(c *volume.Claim) { c.Owner = volume.Owner{Kind: volume.OwnerRuntime, Runtime: "docker"} })
		}, []string{"plugin-boot-deadlock:p"}, "at boot docker may wait", false},
		"in docker for podman": {func(p *Picture) {
			p.Plugins[0].Runtime = "docker"
			claim(p, "a", func(c *volume.Claim) { c.Owner = volume.Owner{Kind: volume.OwnerRuntime, Runtime: "podman"} })
		}, nil, "", false},

		"device gone":     {func(p *Picture) { p.Volumes[0].Blocks["7:0"] = Block{Gone: true} }, []string{"device-gone:data/7:0"}, "is gone", false},
		"backing deleted": {func(p *Picture) { p.Volumes[0].Blocks["7:0"] = Block{Name: "loop0", Backing: "/img", Deleted: true} }, []string{"device-backing-deleted:data/7:0"}, "/dev/loop0 of volume", false},
		"device elsewhere": {func(p *Picture) {
			for alloc := range p.Volumes[0].Record.Claims {
				claim(p, alloc, func(c *volume.Claim) { c.Wanted, c.State = false, volume.Unpublishing })
			}
			p.Mounts = append(p.Mounts, Mounted{Path: "/mnt", Device: "7:0"})
		}, []string{"device-elsewhere:/mnt"}, "umount /mnt", false},

		"orphan": {func(p *Picture) {
			p.Loops = []Loop{{"7:5", Block{Name: "loop5", Backing: "/d/plugins/local/state/volumes/vol-1/image"}}}
		}, []string{"device-orphan:/dev/loop5"}, "losetup -d /dev/loop5", false},
		"orphan, deleted": {func(p *Picture) {
			p.Loops = []Loop{{"7:5", Block{Name: "loop5", Backing: "/d/plugins/local/state/volumes/vol-1/image", Deleted: true}}}
		}, []string{"device-orphan:/dev/loop5"}, "copy away", false},
		"loop devices in use": {func(p *Picture) {
			p.Volumes[0].Record.Volume.ExternalID = "vol-4"
			for i, used := range []Mounted{{Path: "/a", Device: "7:1"}, {Path: "/b", Source: "/dev/loop2", FSType: "btrfs"}, {Path: "/c", Root: "/loop3"}, {}, {}} {
				p.Mounts = append(p.Mounts, used)
				p.Loops = append(p.Loops, Loop{fmt.Sprintf("7:%d", i+1), Block{Name: fmt.Sprintf("loop%d", i+1), Backing: fmt.Sprintf("/d/volumes/vol-%d/image", i+1)}})
			}
			p.Loops[4].Backing = "/home/disk" // a file outside the data dir
		}, nil, "", false},
		"guard":            {func(p *Picture) { p.Guards = []Guard{{Dir: "/srv/x", Volumes: []string{"data"}}} }, []string{"guard-stale:/srv/x"}, "chattr -i /srv/x", true},
		"guard of a claim": {func(p *Picture) { p.Guards = []Guard{{Dir: "/srv/b", Volumes: []string{"data"}}} }, nil, "", false},
		"guard under a mount": {func(p *Picture) {
			p.Guards = []Guard{{Dir: "/srv/x", Volumes: []string{"data"}}}
			p.Mounts = append(p.Mounts, Mounted{Path: "/srv/x", Device: "8:2"})
		}, nil, "", false},
		"guard of an entry": {func(p *Picture) {
			p.Guards = []Guard{{Dir: "/srv/x", Volumes: []string{"data"}}}
			p.Entries = []fstab.Entry{{Volume: "data", Dir: "/srv/x"}}
		}, nil, "", false},
		"guard, entries unread": {func(p *Picture) {
			p.Guards, p.EntriesErr = []Guard{{Dir: "/srv/x", Volumes: []string{"data"}}}, errors.New("EIO")
		}, []string{"fstab-unread:fstab"}, "EIO", false},
		"guard, mounts unread": {func(p *Picture) {
			p.Guards, p.MountsErr = []Guard{{Dir: "/srv/x", Volumes: []string{"data"}}}, errors.New("EIO")
		}, []string{"not-looked:mounts"}, "EIO", false},
		"fstab": {func(p *Picture) {
			p.Entries = []fstab.Entry{{File: "/etc/fstab", Line: 3, Volume: "data", Dir: "/a"}, {File: "/etc/fstab", Line: 4, Volume: "nosuch", Dir: "/b"}}
			p.Faults = []fstab.Fault{{Kind: fstab.Netdev, Severity: fstab.Problem, Subject: "/a", What: "w", Then: "t"}}
		}, []string{"fstab-netdev:/a", "fstab-volume:/b"}, "w", false},
		"fstab, no plugin": {func(p *Picture) {
			p.Entries = []fstab.Entry{{File: "/etc/fstab", Line: 3, Volume: "data", Dir: "/a"}}
			p.Plugins = nil
		}, []string{"fstab-plugin:/a", "plugin-unknown:p"}, "volctl plugin list", false},
		"per alloc": {func(p *Picture) {
			p.Volumes[0].Record.Volume.ID = "data[3]"
			p.Entries = []fstab.Entry{{Volume: "data", Dir: "/a", Options: []string{"per_alloc=3"}}}
		}, nil, "", false},
		"volume file": {func(p *Picture) {
			p.Unmet = []Unmet{{Kind: VolumeFile, Subject: "/v/a.yaml", Why: "line 2: no such field", Do: "mend it"}}
		}, []string{"volume-file:/v/a.yaml"}, "/v/a.yaml, line 2: no such field", false},
		"class file": {func(p *Picture) {
			p.Unmet = []Unmet{{Kind: ClassFile, Subject: "/c/fast.yaml", Why: "line 2: no such field", Do: "correct it"}}
		}, []string{"class-file:/c/fast.yaml"}, "/c/fast.yaml, line 2: no such field", false},
		"fstab with a class": {func(p *Picture) {
			p.Entries = []fstab.Entry{{File: "/etc/fstab", Line: 3, Volume: "new", Dir: "/a", Options: []string{"class=fast"}}}
		}, nil, "", false},
		"metrics address": {func(p *Picture) {
			p.Unmet = []Unmet{{Kind: MetricsAddress, Subject: "agent", Why: "cannot serve the metrics", Do: "ss -ltnp"}}
		}, []string{"metrics-address:agent"}, "ss -ltnp", false},
		"fstab unread": {func(p *Picture) { p.EntriesErr = errors.New("EIO") }, []string{"fstab-unread:fstab"}, "EIO", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := well()
			c.spoil(&p)
			got := Judge(p)
			var ids []string
			for _, f := range got {
				ids = append(ids, f.ID)
				if !slices.Contains(Kinds, f.Kind) || !strings.HasPrefix(f.ID, f.Kind+":") {
					t.Errorf("%s is of no kind that is known", f.ID)
				}
				if f.What == "" || f.Then == "" || f.Subject == "" || f.Severity == "" || (f.Fix == "") != (f.repair.kind == nothing) {
					t.Errorf("it does not say all: %+v", f)
				}
			}
			want := slices.Clone(c.want)
			slices.Sort(ids)
			slices.Sort(want)
			if !slices.Equal(ids, want) {
				t.Fatalf("found %q, want %q", ids, want)
			}
			if len(want) == 0 {
				return
			}
			first := got[slices.IndexFunc(got, func(f Finding) bool { return f.ID == c.want[0] })]
			if text := first.What + "\n" + first.Then + "\n" + first.Do; !strings.Contains(text, c.says) || strings.Contains(text, "%!") {
				t.Errorf("it does not say %q:\n%s", c.says, text)
			}
			if (first.Fix != "") != c.fix {
				t.Errorf("can be fixed: %t", first.Fix != "")
			}
		})
	}
}

// TestOrder checks that findings are sorted: first problems, then warnings, and then notes.
func TestOrder(t *testing.T) {
	p := well()
	p.Leftovers = []Leftover{{Path: csi + "/a", Contents: Contents{Kind: "directory", Empty: true}}}
	p.Database.NoLog, p.Database.Fault = errors.New("x"), errors.New("y")
	var got []Severity
	for _, f := range Judge(p) {
		got = append(got, f.Severity)
	}
	if !slices.Equal(got, []Severity{Problem, Warning, Note}) {
		t.Errorf("the order is %q", got)
	}
}
