package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// docker calls one of the agent's volume plugins over its socket, as docker does. It returns the
// answer and its status.
func docker(h *harness.Host, plugin, method string, body map[string]any) (int, string) {
	h.T.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(h.Dir, plugin+".sock"))
	}}}
	raw, err := json.Marshal(body)
	h.Must(err)
	resp, err := client.Post("http://plugin/VolumeDriver."+method, "application/json", bytes.NewReader(raw))
	h.Must(err)
	defer func() { _ = resp.Body.Close() }()
	var text bytes.Buffer
	_, err = text.ReadFrom(resp.Body)
	h.Must(err)
	return resp.StatusCode, text.String()
}

// TestDocker moves a shared volume between the containers of two hosts. Docker removes the name of
// the volume on one host, and the volume stays.
func TestDocker(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 0, san.Config{Attach: true, Stage: true})
	for _, name := range []string{"h1", "h2"} {
		h := r.prepare(name, san.Config{Attach: true, Stage: true})
		h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte(r.section()+"docker_socket: "+filepath.Join(h.Dir, "csi.sock")+"\n"), 0o600))
		h.Start("san")
		r.hosts = append(r.hosts, h)
	}
	a, b := r.hosts[0], r.hosts[1]
	r.share("db", "reclaim: delete")

	expect := func(h *harness.Host, plugin, method string, body map[string]any, code int, words string) string {
		t.Helper()
		got, text := docker(h, plugin, method, body)
		if got != code || !strings.Contains(text, words) {
			t.Errorf("%s of %s: %d %s, want %d and %q", method, plugin, got, text, code, words)
		}
		return text
	}
	db := map[string]any{"Name": "db"}
	use := map[string]any{"Name": "db", "ID": "container1"}
	expect(a, "csi-shared", "Capabilities", nil, 200, `"global"`)
	expect(a, "csi", "Capabilities", nil, 200, `"local"`)
	for _, h := range r.hosts {
		expect(h, "csi-shared", "Create", db, 200, "")
	}

	var mounted struct{ Mountpoint string }
	a.Must(json.Unmarshal([]byte(expect(a, "csi-shared", "Mount", use, 200, "Mountpoint")), &mounted))
	a.Must(write(a, mounted.Mountpoint, "f", "from h1"))
	b.ExpectRefusal(5, `held by host "h1"`, "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	expect(b, "csi-shared", "Get", db, 200, `"state":"free"`)
	expect(a, "csi-shared", "Unmount", use, 200, "")

	b.Must(json.Unmarshal([]byte(expect(b, "csi-shared", "Mount", use, 200, "Mountpoint")), &mounted))
	if got := read(b, mounted.Mountpoint, "f"); got != "from h1" {
		t.Errorf("host h2 reads %q", got)
	}
	expect(b, "csi-shared", "Unmount", use, 200, "")
	expect(b, "csi-shared", "Remove", db, 200, "")
	expect(b, "csi-shared", "Get", db, 500, "no volume")
	expect(a, "csi-shared", "Get", db, 200, `"state":"free"`)
	mustSay(t, "the list after the removal", b.Volctl("volume", "list"), "db")
	r.awaitGone()

	// Without the cluster, only the plugin for the volumes of the host remains.
	b.Must(b.Signal(15))
	b.Must(os.WriteFile(filepath.Join(b.Dir, "volagent.yaml"), []byte("docker_socket: "+filepath.Join(b.Dir, "csi.sock")+"\n"), 0o600))
	b.Start("san")
	if _, err := os.Stat(filepath.Join(b.Dir, "csi-shared.sock")); !os.IsNotExist(err) {
		t.Errorf("the socket for shared volumes: %v", err)
	}
	expect(b, "csi", "Capabilities", nil, 200, `"local"`)
}
