package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
	"github.com/volagent/volagent/volmgr/shared"
)

// password is the value of a secret.
const password = "correct horse battery"

// nodeOnlyOf returns a driver without its controller.
func nodeOnlyOf(driver san.Config) san.Config {
	driver.NodeOnly = true
	return driver
}

// lent starts a cluster whose first hosts have a controller, and one more host that has none.
func lent(t *testing.T, controllers int) (r *rig, b *harness.Host) {
	t.Helper()
	r = newRig(t, 1, controllers, provisioned)
	b = r.start("h9", nodeOnlyOf(provisioned))
	r.hosts = append(r.hosts, b)
	return r, b
}

// TestLent creates, expands, uses and deletes a shared volume on a host that has only the node part of a
// driver. Hosts with a controller make the calls.
func TestLent(t *testing.T) {
	t.Parallel()
	r, b := lent(t, 2)
	file := r.create("db.yaml")
	b.Volctl("volume", "create", file)
	r.expectDisks(1, 1<<20)
	b.Volctl("volume", "expand", "db", "2MiB")
	r.expectDisks(1, 2<<20)
	path := claim(b, "db", "web", "--timeout", "20s")
	b.Must(write(b, path, "f", "x"))
	b.Volctl("volume", "expand", "db", "3MiB")
	r.expectDisks(1, 3<<20)
	b.Volctl("volume", "detach", "db", "web")
	r.awaitGone()
	b.Volctl("volume", "delete", "db", "-y")
	r.expectNothing()
	for _, e := range r.san.Events() {
		ofController := strings.HasPrefix(e.Method, "Controller") || e.Method == "CreateVolume" || e.Method == "DeleteVolume"
		if e.Kind == san.KindCall && e.Node == "h9" && ofController {
			t.Errorf("the host without a controller has made a call: %s", e)
		}
	}
}

// TestLentKill kills the executor of a create in the middle of the call. Another host with a controller,
// or the restarted executor, repeats the create: the SAN has one disk, and none after the delete.
func TestLentKill(t *testing.T) {
	for _, c := range []struct {
		name        string
		controllers int
	}{
		{"replaced", 2},
		{"restarted", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, b := lent(t, c.controllers)
			release := r.san.Hold("CreateVolume", "h1")
			created := b.StartVolctl("volume", "create", r.create("db.yaml"))
			r.awaitHeld("CreateVolume")
			r.lose(r.hosts[0])
			if c.controllers == 1 {
				r.hosts[0].Start("san")
			}
			release()
			got := <-created
			if got.Code != 0 {
				t.Fatalf("the create ended with %d: %s", got.Code, got.Err)
			}
			r.expectDisks(1, 1<<20)
			b.Volctl("volume", "delete", "db", "-y")
			r.expectNothing()
		})
	}
}

// TestLentAway creates, expands and deletes a volume while all hosts with a controller are away. The
// caller learns which host has one, and nothing changes.
func TestLentAway(t *testing.T) {
	t.Parallel()
	r, b := lent(t, 1)
	file := r.create("db.yaml")
	refused := func(args ...string) {
		t.Helper()
		got := b.Try(args...)
		if words := "no live host runs a controller of driver san.example.com"; got.Code != 6 || !strings.Contains(got.Err, words) || !strings.Contains(got.Err, "h1") {
			t.Errorf("%q ended with %d: %s", args, got.Code, got.Err)
		}
	}

	r.lose(r.hosts[0])
	refused("volume", "create", file)
	r.expectNothing()

	r.hosts[0].Start("san")
	b.Volctl("volume", "create", file)
	r.lose(r.hosts[0])
	before := r.value(shared.VolumeKey("db"))
	refused("volume", "expand", "db", "2MiB")
	refused("volume", "delete", "db", "-y")
	if after := r.value(shared.VolumeKey("db")); after != before {
		t.Errorf("the definition has changed from %s to %s", before, after)
	}
	r.expectDisks(1, 1<<20)
	if call := r.value(shared.CallKey("db")); call != "" {
		t.Errorf("a call is announced: %s", call)
	}
}

// TestNeverController creates a volume in a cluster in which no host has a controller. The command says
// so at once.
func TestNeverController(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, nodeOnlyOf(provisioned))
	got := r.hosts[1].Try("volume", "create", r.create("db.yaml"))
	if words := "no host of the cluster runs a controller of driver san.example.com"; got.Code != 6 || !strings.Contains(got.Err, words) {
		t.Errorf("the create ended with %d: %s", got.Code, got.Err)
	}
	r.expectNothing()
}

// TestLentSecrets creates a volume with a secret, on a host without a controller. While the executor makes
// the call, and after it, etcd does not have the value of the secret.
func TestLentSecrets(t *testing.T) {
	t.Parallel()
	r, b := lent(t, 1)
	a := r.hosts[0]
	secret := filepath.Join(a.Dir, "password")
	a.Must(os.WriteFile(secret, []byte(password), 0o600))
	config := strings.TrimSuffix(strings.TrimSpace(r.section()), "}") + ", secrets: {files: [" + a.Dir + "/]}}\n"
	for _, h := range r.hosts {
		h.Kill()
		h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte(config), 0o600))
		h.Start("san")
	}
	check := func() {
		t.Helper()
		for _, kv := range r.keys() {
			if strings.Contains(string(kv.Value), password) {
				t.Errorf("etcd has the secret in %s: %s", kv.Key, kv.Value)
			}
		}
	}

	file := r.create("db.yaml")
	text, err := os.ReadFile(file)
	a.Must(err)
	a.Must(os.WriteFile(file, []byte(string(text)+"secrets: {password: {file: "+secret+"}}\n"), 0o600))
	release := r.san.Hold("CreateVolume", "h1")
	created := b.StartVolctl("volume", "create", file)
	r.awaitHeld("CreateVolume")
	check()
	release()
	if got := <-created; got.Code != 0 {
		t.Fatalf("the create ended with %d: %s", got.Code, got.Err)
	}
	check()
	b.Volctl("volume", "delete", "db", "-y")
}

// TestLentSnapshot makes a snapshot of a shared volume on a host that has only the node part of a driver.
// A host with a controller makes the call. Other requests about snapshots are refused, and the error
// names the host on which they work.
func TestLentSnapshot(t *testing.T) {
	t.Parallel()
	driver := provisioned
	driver.Snapshots = true
	r := newRig(t, 1, 1, driver)
	a, b := r.hosts[0], r.start("h9", nodeOnlyOf(driver))
	b.Volctl("volume", "create", r.create("db.yaml"))
	b.Volctl("volume", "snapshot", "create", "db", "monday", "--timeout", "60s")
	made := 0
	for _, e := range r.san.Events() {
		if e.Kind != san.KindCall || e.Method != "CreateSnapshot" {
			continue
		}
		if made++; e.Node != "h1" {
			t.Errorf("host %s has made the snapshot", e.Node)
		}
	}
	if made == 0 {
		t.Error("no host has called CreateSnapshot")
	}
	if list := a.Volctl("volume", "snapshot", "list", "--plugin", "san", "-q"); len(strings.Fields(list)) != 1 {
		t.Errorf("the snapshots are %q", list)
	}
	refused(t, b.Try("volume", "snapshot", "list", "--plugin", "san").Err, "repeat the command on a host with a controller: h1")
	refused(t, b.Try("volume", "snapshot", "create", "db", "tuesday", "--secret", "a=env:HOME").Err, "do not travel to other hosts")
	b.Await("the end of the call", func() bool { return r.value(shared.CallKey("db")) == "" })
}
