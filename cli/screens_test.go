package cli

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
)

const day = 24 * time.Hour

func capability(access string) api.Capability {
	return api.Capability{AccessMode: access, AttachmentMode: "file-system"}
}

// world returns a fake agent with an example of almost every kind of object.
func world() *fake {
	mode := capability("single-node-writer")
	many := capability("multi-node-multi-writer")
	claim := func(volume, alloc, state string, since time.Duration) api.Claim {
		return api.Claim{
			Volume: volume, PluginID: "ebs", Alloc: alloc, State: state, Wanted: state == api.ClaimMounted || state == api.ClaimPending,
			AccessMode: mode.AccessMode, AttachmentMode: mode.AttachmentMode, Owner: api.Owner{Kind: api.OwnerNone},
			Path: "/var/lib/volagent/csi/ebs/per-alloc/" + alloc + "/" + volume, Since: ago(since),
		}
	}
	data := api.Volume{
		Spec:  api.VolumeSpec{ID: "data", Name: "postgres data", PluginID: "ebs", ExternalID: "vol-0abc", CapacityMin: 100 << 30, Capabilities: []api.Capability{mode}},
		State: api.StateMounted, Summary: "mounted, writable", Driver: "ebs.csi.aws.com", PluginState: "ready", PluginVersion: "1.38",
		Capacity: 100 << 30, RegisteredAt: ago(9 * day), Mode: &mode, Controller: true, Attached: "present", Staged: "present",
		MountSource: "/dev/nvme2n1", FSType: "ext4", AnswersMS: 2.1, Claims: []api.Claim{claim("data", "postgres.service", api.ClaimMounted, 3*day)},
	}
	data.Claims[0].Owner = api.Owner{Kind: api.OwnerUnit, Unit: "postgres.service", Invocation: strings.Repeat("5a", 16), State: api.OwnerRunning, PID: 812, Command: "postgres"}
	stuck := api.Volume{
		Spec:  api.VolumeSpec{ID: "backup_1", PluginID: "ebs", Capabilities: []api.Capability{mode}},
		State: api.StateStuck, Summary: "stuck: unmounting", Driver: "ebs.csi.aws.com", PluginState: "ready",
		Mode: &mode, Attached: "present", Staged: "present", DataSafe: "yes", StillMounted: "yes",
		Claims: []api.Claim{claim("backup_1", "backup.service", api.ClaimUnpublishing, 2*time.Hour)},
		Attempt: &api.Attempt{
			Step: "NodeUnpublishVolume", Index: 4, Of: 6, Alloc: "backup.service", Code: "Internal", Unknown: true, Message: "umount: target is busy\n",
			Tries: 9, First: ago(14 * time.Minute), Next: now.Add(100 * time.Second), Retry: "backoff",
			HeldBy: []string{"pid 4711 rsync (backup.service), cwd"}, PluginLog: []string{"unmounting", "umount: busy \x1b[31m"}, Fix: "systemctl stop backup.service", Else: "volctl volume detach backup_1 backup.service --without-plugin=lazy",
		},
		PendingCalls: []string{"NodeUnstageVolume"}, Notes: []string{"a mount at an unknown path was left alone"},
	}
	shared := api.Volume{
		Spec:  api.VolumeSpec{ID: "data-shared", PluginID: "nfs", Capabilities: []api.Capability{many}},
		State: api.StateDegraded, Summary: "mounted, plugin unavailable", PluginState: "backing-off", Mode: &many, Attached: "absent", Staged: "unknown",
		Claims: []api.Claim{
			claim("data-shared", "a", api.ClaimMounted, 40*time.Second), claim("data-shared", "b", api.ClaimMounted, 90*time.Minute), claim("data-shared", "c", api.ClaimPending, time.Second),
		},
	}
	stuck.Claims[0].Owner = api.Owner{Kind: api.OwnerUnit, Unit: "backup.service", State: api.OwnerGone}
	shared.Claims[1].Owner = api.Owner{Kind: api.OwnerPID, PID: 4711, Command: "rsync", State: api.OwnerRunning}
	for i := range shared.Claims {
		shared.Claims[i].PluginID = "nfs"
	}
	shared.Claims[1].Note = "restore test, größe 2"
	shared.Claims[0].ReadOnly, shared.Claims[0].Remark = true, "plugin unavailable"
	free := api.Volume{Spec: api.VolumeSpec{ID: "web[0]", PluginID: "ebs", Capabilities: []api.Capability{mode, many}}, State: api.StateFree, Summary: "free", PluginState: "ready", Capacity: 1536 << 20, Claims: []api.Claim{}, Attached: "absent", Staged: "absent"}
	ebs := api.Plugin{
		ID: "ebs", Type: "monolith", Runner: "exec", Provider: "ebs.csi.aws.com", Version: "1.38", State: api.PluginReady, Since: ago(3 * day), PID: 812, NodeID: "i-0123",
		Topology: map[string]string{"zone": "eu-1a", "rack": "r1"}, MaxVolumes: 25, Volumes: []string{"data", "backup_1", "web[0]"}, Staged: 2, FUSEClaims: 3,
		ControllerCapabilities: []string{"CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"}, NodeCapabilities: []string{"STAGE_UNSTAGE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"},
		Socket: "/run/volagent/plugins/ebs/csi.sock", LogFile: "/var/log/volagent/ebs.log", LastLog: []string{"not shown while it is ready"},
		ControllersHealthy: 1, ControllersExpected: 1, NodesHealthy: 1, NodesExpected: 1, Fence: api.FenceDetach,
	}
	ebs.Parts = []api.PluginPart{{
		Type: ebs.Type, Runner: ebs.Runner, State: ebs.State, Since: ebs.Since, PID: ebs.PID, Socket: ebs.Socket, LogFile: ebs.LogFile, LastLog: ebs.LastLog,
		Warnings: []string{"the plugin is in a network namespace of its own"},
		File:     "/etc/volagent/plugins.d/ebs.yaml", Running: map[string]string{"exec.command": `["/usr/bin/ebs", "--endpoint=${CSI_ENDPOINT}"]`, "exec.env.KEY": "{file: /etc/ebs.key}", "fence": api.FenceDetach},
	}}
	nfs := api.Plugin{
		ID: "nfs", Runner: "exec", State: api.PluginBackingOff, Reason: "it exited 6 times", Since: ago(5 * time.Minute), Next: now.Add(40 * time.Second), Restarts: 6,
		Volumes: []string{"data-shared"}, LastExit: "exit status 2", LastLog: []string{"starting", "panic: \x1b[31mno server"}, Pending: "its file was changed while a volume is staged", NodesExpected: 1,
	}
	nfs.Parts = []api.PluginPart{{
		Runner: nfs.Runner, State: nfs.State, Reason: nfs.Reason, Since: nfs.Since, Next: nfs.Next, Restarts: nfs.Restarts, LastExit: nfs.LastExit, LastLog: nfs.LastLog, Pending: nfs.Pending,
		Running: map[string]string{"exec.command": `["/usr/bin/nfs"]`, "max_in_flight": "4"}, Wanted: map[string]string{"exec.command": `["/usr/bin/nfs", "-v"]`, "max_in_flight": "-"},
	}}
	rbd := api.Plugin{
		ID: "rbd", Type: "node+controller", Runner: "exec", Provider: "rbd.csi.ceph.com", Version: "3.15", State: api.PluginReady, Reason: "controller b is backing-off: process exited with status 1",
		Since: ago(day), Restarts: 3, NodeID: "web1", Volumes: []string{}, ControllersHealthy: 1, ControllersExpected: 2, NodesHealthy: 1, NodesExpected: 1,
		Parts: []api.PluginPart{
			{Type: "node", Runner: "exec", State: api.PluginReady, Since: ago(day), PID: 900, Socket: "/run/volagent/plugins/rbd/csi.sock"},
			{Type: "controller", Instance: "a", Runner: "exec", State: api.PluginReady, Since: ago(day), PID: 901, Socket: "/run/volagent/plugins/rbd~2Fcontroller~2Fa/csi.sock"},
			{
				Type: "controller", Instance: "b", Runner: "exec", State: api.PluginBackingOff, Reason: "process exited with status 1", Since: ago(5 * time.Second), Next: now.Add(3 * time.Second), Restarts: 3,
				LastExit: "exited with status 1", LastLog: []string{"no monitor answers"},
			},
		},
	}
	return &fake{
		volumes: []api.Volume{free, stuck, data, shared}, plugins: []api.Plugin{nfs, ebs, rbd},
		node: &api.Node{
			ID: "web1", Version: "1.2.0", StartedAt: ago(3 * day), DB: "ok", State: "ok", Plugins: []api.Plugin{ebs, nfs}, Volumes: 4, Mounted: 1, Free: 1, Claims: 5, Unaffected: 2,
			Problems: []api.Problem{
				{Subject: "backup_1", State: "stuck", Since: ago(14 * time.Minute), Message: "unmounting, busy: pid 4711 rsync (backup.service), cwd", Command: "volctl volume status backup_1"},
				{Subject: "nfs", State: "backing off", Since: ago(5 * time.Minute), Message: "it exited 6 times, 6 restarts, next in 40s", Command: "volctl plugin logs nfs"},
			},
		},
		on: map[string]func(*http.Request) (any, error){
			"GET /v1/volumes/data/stats": func(*http.Request) (any, error) {
				return api.Stats{Volume: "data", BytesTotal: 100 << 30, BytesUsed: 41 << 30, BytesAvailable: 59 << 30, InodesTotal: 6553600, InodesUsed: 196608, InodesAvailable: 6356992}, nil
			},
			"GET /v1/volumes/data/report": answers(api.Report{
				Stats:     &api.Stats{Volume: "data", At: ago(time.Second), BytesTotal: 100 << 30, BytesUsed: 41 << 30, BytesAvailable: 59 << 30, InodesTotal: 6553600, InodesUsed: 196608, InodesAvailable: 6356992},
				CheckedAt: map[string]time.Time{"node": ago(time.Second)},
			}),
			"GET /v1/classes":        answers(classes()),
			"GET /v1/classes/fast":   answers(classes()[2]),
			"GET /v1/classes/gp3":    answers(classes()[3]),
			"GET /v1/classes/broken": answers(classes()[1]),
			"GET /v1/events": func(r *http.Request) (any, error) {
				return raw(`{"time":"2026-03-10T03:00:00Z","seq":1,"volume":"data","alloc":"postgres.service","type":"claim-mounted","message":"mounted at /x"}
{"time":"2026-03-10T03:01:00Z","seq":2,"plugin":"nfs","type":"plugin-exited","message":"exit status 2\nwith \u001b[31m more"}
`), nil
			},
			"GET /v1/plugins/nfs/logs": func(*http.Request) (any, error) { return raw("starting\npanic\n"), nil },
		},
	}
}

// classes returns classes with and without mistakes, sorted by id.
func classes() []api.Class {
	return []api.Class{
		{File: "/etc/volagent/classes.d/-.yaml", Line: 1, Problem: "the file contains no class", Volumes: []string{}},
		{Spec: api.ClassSpec{ID: "broken"}, File: "/etc/volagent/classes.d/broken.yaml", Line: 3, Problem: `unknown field "sice" in a class (did you mean "size"?)`, Volumes: []string{}},
		{
			Spec: api.ClassSpec{
				ID: "fast", Note: "SSDs for databases", PluginID: "ebs", NamePrefix: "web1-", Size: api.ClassSize{Default: 10 << 30, Min: 1 << 30, Max: 1 << 40},
				Capabilities: []api.Capability{capability("single-node-writer")}, MountOptions: &api.MountOptions{FSType: "xfs", MountFlags: []string{"noatime"}},
				Topology: &api.TopologyRequest{Required: []map[string]string{{"zone": "a"}}}, Parameters: map[string]string{"type": "gp3"}, Mutable: map[string]string{"iops": "4000"},
				Secrets: map[string]api.Secret{"key": {File: "/etc/volagent/secrets/ebs"}}, Reclaim: "delete", Scope: "host", Allow: []string{"fs_type", "reclaim"},
			},
			File: "/etc/volagent/classes.d/fast.yaml", PluginID: "ebs", PluginState: "ready", Volumes: []string{"data", "web[0]"},
		},
		{
			Spec: api.ClassSpec{ID: "gp3", Driver: "nfs.csi.k8s.io", Reclaim: "delete"}, File: "/etc/volagent/classes.d/gp3.yaml", PluginID: "nfs", PluginState: "backing-off", Volumes: []string{},
			Warnings: []string{"the class names Secrets of the cluster, which the agent cannot read"},
		},
	}
}

// session runs several commands and returns everything that a user would see on the terminal.
func session(r *run, lines ...[]string) string {
	var b strings.Builder
	for _, args := range lines {
		res := r.volctl(args...)
		fmt.Fprintf(&b, "$ volctl %s\n%s", strings.Join(args, " "), res.stdout)
		if res.stderr != "" {
			fmt.Fprintf(&b, "--- stderr\n%s", res.stderr)
		}
		if res.code != 0 {
			fmt.Fprintf(&b, "--- exit %d\n", res.code)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func words(lines ...string) [][]string {
	out := make([][]string, len(lines))
	for i, l := range lines {
		out[i] = strings.Fields(l)
	}
	return out
}

func TestScreens(t *testing.T) {
	for name, lines := range map[string][][]string{
		"volume_list":   words("volume list", "ls -o wide", "volume ls -q", "volume status"),
		"volume_status": words("volume status data", "volume status backup_1", "volume status backup_1 -o wide", "volume status data-shared", "volume status web[0]", "volume status back -q"),
		"volume_json":   words("volume status web[0] -o json", "inspect web[0]", "volume inspect web[0] -o yaml", "volume list --json -q"),
		"volume_stats":  words("volume stats data", "volume stats data -o yaml"),
		"claim_list":    words("claim list", "ps -o wide", "ps -q"),
		"plugin":        words("plugin list", "plugin list -o wide", "plugin status ebs", "plugin status nfs", "plugin status rbd", "plugin status", "plugin logs nfs", "plugin status -q"),
		"class":         words("class list", "class list -o wide", "class ls -q", "class status fast", "class status", "class show fas", "class show gp3", "class show broken", "class show fats", "class show x", "class status fast -o json", "class show fast -o json"),
		"node":          words("node status", "status -o wide", "node status -q"),
		"events":        words("events", "events -o json", "events -o yaml", "events -q"),
		"version":       words("version", "version -o json", "--version"),
		"template": {
			{"volume", "list", "-o", "go-template={{range .}}{{.spec.id}} {{.capacity}}\n{{end}}"},
			{"volume", "status", "data", "-o", "go-template={{if gt .capacity 1000}}large{{end}} {{json .mode}}"},
			{"volume", "list", "-o", "go-template={{.x.y.z}}"}, {"volume", "list", "-o", "go-template={{"}, {"volume", "list", "-o", "go-template"}, {"volume", "list", "-o", "xml"},
			{"volume", "list", "-o", "json=x"}, {"volume", "list", "--json", "-o", "yaml"},
		},
		"prefixes": words("volume status dat", "volume status data-", "volume status dta", "volume status nothing", "volume stats data-s", "plugin status e", "plugin status x", "plugin logs nsf",
			"claim list --volume back", "claim list --volume data", "claim list --plugin nf", "claim list --alloc a", "volume status dat -o json"),
		"usage": words("volume", "volume lst", "volumes list", "create x", "claim data", "nothing", "rm data", "volume rm -f data", "attach data", "volume attach", "volume list x", "volume claim",
			"volume claim a b", "volume list --outptu=json", "volume list -o json --outptu", "volume list --nothing", "volume claim ..", "volume claim ../x --json", "volume detach", "volume claim data --alloc a/b",
			"volume claim data --timeout 0s", "volume claim data --timeout 5x", "volume claim data --owner pid:x", "volume claim data --at srv/data", "volume claim data --uid 5", "volume claim data --access-mode single-node-write",
			"volume detach data a --all", "volume detach data a a", "volume delete data", "volume delete data -y --confirm=dat", "wait --volume data", "wait --for free", "wait --volume data --for fre",
			"wait --plugin a --volume b --for free", "events -n 0", "events --since -1s", "plugin status a/b", "volume status a/b", "completion csh", "completion"),
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, filepath.Join("testdata", name+".txt"), session(with(t, world()), lines...))
		})
	}
}

// TestVolumeWaits checks the screens of two volumes: the step of one volume waits, and the step of
// the other has failed on this host. A screen must not show a message of the agent as if it came
// from the plugin, and must show when the wait ends.
func TestVolumeWaits(t *testing.T) {
	mode := capability("single-node-writer")
	watched := api.Volume{
		Spec:  api.VolumeSpec{ID: "late", PluginID: "ebs", Capabilities: []api.Capability{mode}},
		State: api.StateDetaching, Summary: "detaching", PluginState: "ready", Attached: "absent", Staged: "absent",
		Attempt: &api.Attempt{Step: "wait", Cause: "watch", Waits: "a call of unknown outcome may still have an effect", First: ago(time.Second), Next: now.Add(100 * time.Second)},
	}
	refused := api.Volume{
		Spec:  api.VolumeSpec{ID: "bound", PluginID: "ebs", Capabilities: []api.Capability{mode}},
		State: api.StateStuck, Summary: "stuck: mounting", PluginState: "ready", Attached: "absent", Staged: "present", DataSafe: "yes", StillMounted: "yes",
		Attempt: &api.Attempt{
			Step: "bind", Alloc: "web", Code: api.CodeHost, Message: "cannot use /srv as a mount point: no such directory", Tries: 1, First: ago(26 * time.Hour), Retry: "change",
			Fix: "volctl volume detach bound web",
		},
	}
	f := &fake{volumes: []api.Volume{watched, refused}}
	golden(t, filepath.Join("testdata", "volume_waits.txt"), session(with(t, f), words("volume status late", "volume status bound")...))
}

func TestHealthyNode(t *testing.T) {
	f := world()
	f.node.Problems, f.node.Plugins = nil, f.node.Plugins[:1]
	busy := world()
	busy.node.Pending = []api.PendingChange{
		{Subject: `volume "data"`, Message: "expanding to 20GiB", Command: "volctl volume status data"},
		{Subject: `snapshot "nightly"`, Since: ago(time.Hour), Message: `of "data", plugin "ebs": "snap-1" has not been seen to be ready`, Command: "volctl volume snapshot list --plugin ebs"},
	}
	ill := world()
	ill.node.State, ill.node.Problems = "the mount namespace is another one than at the last start", nil
	empty := &fake{node: &api.Node{ID: "new", Version: "dev", State: "ok", StartedAt: now}}
	all := words("node status", "volume list", "claim list", "plugin list", "volume list -o json")
	text := session(with(t, f), all[0]) + session(with(t, ill), all[0]) + session(with(t, empty), all...)
	text += session(with(t, busy), all[0])
	busy.node.Problems = nil
	text += session(with(t, busy), all[0])
	golden(t, filepath.Join("testdata", "node_healthy.txt"), text)
}

// TestNarrowTerminal checks that no screen is wider than the terminal.
func TestNarrowTerminal(t *testing.T) {
	r := with(t, unwell())
	ill := with(t, patient(ill()))
	for _, columns := range []int{132, 80, 60, 40} {
		for _, line := range words("volume list", "ls -o wide", "volume status data -o wide", "volume status backup_1", "volume status data-shared", "claim list", "ps -o wide",
			"plugin list", "plugin list -o wide", "plugin status", "plugin volumes ebs -o wide", "plugin health ebs", "node status", "node status -o wide", "events", "doctor") {
			on := r
			if line[0] == "doctor" {
				on = ill
			}
			on.columns = columns
			for text := range strings.Lines(on.volctl(line...).stdout) {
				if n := len([]rune(strings.TrimSuffix(text, "\n"))); n > columns {
					t.Errorf("%s: a line of %d columns on a terminal of %d: %s", strings.Join(line, " "), n, columns, text)
				}
			}
		}
	}
}

// TestColours checks that the output has colours only on a terminal, and only if the user has not
// disabled colours.
func TestColours(t *testing.T) {
	r := with(t, world())
	const red = "\x1b[31m×\x1b[0m backup_1"
	r.colour = true
	if got := r.volctl("volume", "status", "backup_1").stdout; !strings.HasPrefix(got, red) {
		t.Errorf("on a terminal: %q", got)
	}
	plain := func(why string, res result) {
		t.Helper()
		if strings.Contains(res.stdout, "\x1b") || !strings.HasPrefix(res.stdout, "× backup_1  stuck") {
			t.Errorf("%s: %q", why, res.stdout)
		}
	}
	plain("--no-color", r.volctl("volume", "status", "backup_1", "-no-color"))
	r.env = map[string]string{"NO_COLOR": "1"}
	plain("NO_COLOR", r.volctl("volume", "status", "backup_1"))
	r.env = map[string]string{"TERM": "dumb"}
	plain("TERM=dumb", r.volctl("volume", "status", "backup_1"))
	r.env, r.colour = nil, false
	plain("no terminal", r.volctl("volume", "status", "backup_1"))
}

// TestStatusWithoutStats checks that "volctl volume status" returns even if the plugin does not
// answer the request for a report.
func TestStatusWithoutStats(t *testing.T) {
	f := world()
	f.on["GET /v1/volumes/data/report"] = func(r *http.Request) (any, error) { <-r.Context().Done(); return nil, r.Context().Err() }
	r := with(t, f)
	start := time.Now()
	res := r.volctl("volume", "status", "data")
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
	if res.code != 0 || !strings.Contains(res.stdout, "100GiB\n") {
		t.Errorf("got %+v", res)
	}
}
