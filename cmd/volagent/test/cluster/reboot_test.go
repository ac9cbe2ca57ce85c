package cluster_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestRebootWithoutEtcd reboots a host that has claims on a volume for one host and on a volume for many
// hosts, while etcd is away. The host does not know whether it still has its holds, so it makes no call
// for the volumes. When etcd is back, it mounts both of them again, with their data. Meanwhile a volume
// that only this host uses is mounted at once. (I1, I3, I4)
func TestRebootWithoutEtcd(t *testing.T) {
	t.Parallel()
	f := newField(t, 2)
	a, b := f.Hosts[0], f.Hosts[1]
	createVolume(a, "own")
	a.Volctl("volume", "claim", "own", "--alloc", "web")
	paths := map[string]string{}
	for id, access := range map[string]string{"db": "single-node-multi-writer", "other": "multi-node-multi-writer"} {
		shareOn(a.Host, f.san, id, mode(access))
		paths[id] = claim(a.Host, id, "web")
		a.MustRun("sh", "-c", `echo kept > "$1" && sync`, "sh", filepath.Join(paths[id], "file"))
	}

	for _, m := range f.Etcd {
		m.Kill()
	}
	a.Reboot()
	mark := len(f.san.Events())
	a.Start("san")
	a.Await("the volume of this host alone", func() bool { return a.Try("volume", "claim", "own", "--alloc", "web", "--timeout", "5s").Code == 0 })
	for id := range paths {
		a.Await("the refusal of "+id+" that names the endpoints", func() bool {
			r := a.Try("volume", "claim", id, "--alloc", "web", "--timeout", "4s")
			if r.Code != 6 {
				t.Errorf("the claim of %s without etcd ended with %d: %s", id, r.Code, r.Err)
			}
			return strings.Contains(r.Err, "https://10.77.")
		})
	}
	for _, e := range f.san.Events()[mark:] {
		if e.Kind == san.KindCall && e.Node == a.Name && e.Volume != "" {
			t.Errorf("without etcd, the host makes a call for a volume: %s", e)
		}
	}
	if mounts := a.Mounts(); strings.Contains(mounts, "san:") {
		t.Errorf("without etcd, a shared volume is mounted:\n%s", mounts)
	}

	for _, m := range f.Etcd {
		m.Launch()
	}
	for _, m := range f.Etcd {
		m.AwaitReady()
	}
	for id, path := range paths {
		a.Await("the mount of "+id, func() bool { return a.Run("cat", filepath.Join(path, "file")).Out == "kept\n" })
	}
	refused(t, b.Try("volume", "claim", "db", "--alloc", "web", "--timeout", "5s").Err, `held by host "h1"`)
	f.awaitAgreement("the reboot", map[string]string{"db": "h1", "other": "h1"})
	for id, path := range paths {
		a.MustRun("sh", "-c", `echo more > "$1"`, "sh", filepath.Join(path, "more"))
		a.Volctl("volume", "detach", id, "web", "--timeout", "60s")
	}
	f.awaitAgreement("the last detach", map[string]string{})
}
