package cluster_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/agent/config"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
	"github.com/volagent/volagent/volmgr/shared"
)

func noAttachment(c *csitest.Config) { c.Attach = false }

// registerShared registers the shared volume db on a host.
func registerShared(h *harness.Host) {
	file := filepath.Join(h.Dir, "db.yaml")
	h.Must(os.WriteFile(file, []byte(volumeFile), 0o600))
	h.Volctl("volume", "register", file)
}

// statusOf returns the status of the volume db on a host.
func statusOf(h *harness.Host) (v api.Volume) {
	h.T.Helper()
	h.Must(json.Unmarshal([]byte(h.Volctl("volume", "status", "db", "-o", "json")), &v))
	return v
}

// volumeOn returns the status of a volume on a host. The result ok is false if the host cannot read it
// from etcd.
func volumeOn(h *harness.Host, id string) (v api.Volume, ok bool) {
	h.T.Helper()
	r := h.Try("volume", "status", id, "-o", "json")
	if r.Code == 0 {
		h.Must(json.Unmarshal([]byte(r.Out), &v))
	}
	return v, r.Code == 0 && r.Err == ""
}

// TestSettings changes the settings that decide about a takeover. The other hosts see the fence of a
// plugin after its file has changed, and the takeover of a volume while it is in use.
func TestSettings(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a := startHost(t, "a", etcd, nil)
	registerShared(a)
	a.Volctl("volume", "claim", "db", "--alloc", "web")
	register := func(more string) string {
		file := filepath.Join(a.Dir, "db.yaml")
		a.Must(os.WriteFile(file, []byte(volumeFile+more), 0o600))
		return a.Volctl("volume", "register", file)
	}
	if out := register("takeover: never\n"); !strings.Contains(out, "takeover") {
		t.Errorf("register: %s", out)
	}
	if v := statusOf(a); v.State != api.StateMounted || v.Spec.Takeover != api.TakeoverNever {
		t.Errorf("with takeover: never: %+v", v.Spec)
	}
	if text := a.Volctl("volume", "export", "db"); !strings.Contains(text, "takeover: never") {
		t.Errorf("exported:\n%s", text)
	}
	register("takeover: proven\n")
	if v := statusOf(a); v.Spec.Takeover != "" {
		t.Errorf("with takeover: proven: %+v", v.Spec)
	}
	a.Volctl("volume", "detach", "db", "web")

	file := filepath.Join(a.Dir, "plugins.d", "san.yaml")
	text, err := os.ReadFile(file)
	a.Must(err)
	a.Must(os.WriteFile(file, bytes.Replace(text, []byte("{"), []byte(`{"fence": "detach",`), 1), 0o600))
	a.Await("the fence in the cluster", func() bool {
		return strings.Contains(etcd.Get(config.DefaultPrefix+"/v1/"+shared.NodeInfoKey("a")), `"fence":"detach"`)
	})
	a.ExpectOutput("Fence    detach", "plugin", "status", "san")
}

// TestScreens shows a volume that one host holds on another host, which has no record of it. It also
// drains a host, and shows the list without etcd.
func TestScreens(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	a, b := startHost(t, "a", etcd, nil), startHost(t, "b", etcd, nil)
	registerShared(a)
	a.Volctl("volume", "claim", "db", "--alloc", "web")

	b.Await("the hold and the claims of host a on host b", func() bool {
		v := statusOf(b)
		return len(v.Holds) == 1 && v.Holds[0].Claims != nil && *v.Holds[0].Claims == 1
	})
	v := statusOf(b)
	if h := v.Holds[0]; v.State != api.StateHeld || v.Scope != api.ScopeShared || h.Host != "a" || h.HostState != api.HostReady || h.Attachment != "attached" || h.Token == "" {
		t.Errorf("on host b: %+v", v)
	}
	if v := statusOf(a); v.State != api.StateMounted || len(v.Holds) != 1 || len(v.Claims) != 1 {
		t.Errorf("on host a: %+v", v)
	}
	if list := b.Volctl("volume", "list"); !strings.Contains(list, "SCOPE") || !strings.Contains(list, "held") {
		t.Errorf("the list on host b:\n%s", list)
	}
	if show := b.Volctl("node", "status", "a"); !strings.Contains(show, "db") || !strings.Contains(show, "ready") {
		t.Errorf("host a on host b:\n%s", show)
	}

	b.Volctl("node", "drain", "--deadline", "5s")
	a.Await("the drain of host b on host a", func() bool {
		for _, line := range strings.Split(a.Volctl("node", "list"), "\n") {
			if strings.HasPrefix(line, "b ") && strings.Contains(line, "draining") {
				return true
			}
		}
		return false
	})
	b.Volctl("node", "undrain")
	a.Await("the end of the drain", func() bool { return !strings.Contains(a.Volctl("node", "list"), "draining") })

	etcd.Stop(0)
	r := a.Try("volume", "list")
	if r.Code != 0 || !strings.Contains(r.Out, "shared  a") || !strings.Contains(r.Err, etcd.Endpoints()[0]) {
		t.Errorf("without etcd: exit %d\n%s\n%s", r.Code, r.Out, r.Err)
	}
	etcd.Start(0)
	a.Await("etcd again", func() bool { r := a.Try("volume", "list"); return r.Err == "" })
	a.Volctl("volume", "detach", "db", "web")
}
