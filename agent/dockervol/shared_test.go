package dockervol

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// sharedDocker is docker as a caller of the plugin for shared volumes.
var sharedDocker = func() Caller { c := docker; c.Shared = true; return c }()

// newSharedWorld returns a host with the volume "own", in a cluster with the shared volume "db".
func newSharedWorld(t *testing.T) (*world, *Service) {
	w, s := newWorld(t, "own")
	w.cluster = map[string]volume.Volume{"db": {ID: "db", PluginID: "p", Reclaim: "delete", Shared: true}}
	return w, s
}

// TestSharedServer sends calls to the plugin for shared volumes over its socket. The volumes of this
// host belong to the other plugin.
func TestSharedServer(t *testing.T) {
	w, s := newSharedWorld(t)
	_, local := serving(t, s)
	_, global := serve(t, NewSharedServer(s))
	for _, c := range []struct {
		global       bool
		method, body string
		code         int
		want         string
	}{
		{true, "VolumeDriver.Capabilities", "{}", 200, `global`},
		{false, "VolumeDriver.Capabilities", "{}", 200, `local`},
		{true, "VolumeDriver.Get", `{"Name":"db"}`, 500, `docker volume create -d csi-shared db`},
		{true, "VolumeDriver.Create", `{"Name":"nope"}`, 500, `no volume "nope" is registered`},
		{true, "VolumeDriver.Create", `{"Name":"own"}`, 500, `belongs to this host, and the plugin csi-shared has shared volumes only (hint: docker volume create -d csi own)`},
		{true, "VolumeDriver.Create", `{"Name":"db"}`, 200, ``},
		{false, "VolumeDriver.Create", `{"Name":"db"}`, 500, `docker already has volume "db" of the plugin csi-shared`},
		{false, "VolumeDriver.Create", `{"Name":"d","Opts":{"volume":"db"}}`, 500, `shared by the hosts of the cluster`},
		{false, "VolumeDriver.Create", `{"Name":"own"}`, 200, ``},
		{true, "VolumeDriver.List", "", 200, `[map[CreatedAt:2001-09-09T01:46:40Z Name:db `},
		{false, "VolumeDriver.List", "", 200, `[map[CreatedAt:2001-09-09T01:46:40Z Name:own `},
		{false, "VolumeDriver.Get", `{"Name":"db"}`, 500, `no volume "db" here`},
		{true, "VolumeDriver.Get", `{"Name":"own"}`, 500, `no volume "own" here`},
		{true, "VolumeDriver.Mount", `{"Name":"db","ID":"c1"}`, 200, `/t/docker/db`},
		{false, "VolumeDriver.Remove", `{"Name":"db"}`, 200, ``}, // the other plugin does not have the name
		{true, "VolumeDriver.Remove", `{"Name":"db"}`, 500, `in use`},
		{true, "VolumeDriver.Unmount", `{"Name":"db","ID":"c1"}`, 200, ``},
		{true, "VolumeDriver.Remove", `{"Name":"db"}`, 200, ``},
		{true, "VolumeDriver.List", "", 200, `map[Volumes:[]]`},
	} {
		call := map[bool]func(method, body string) (int, map[string]any, error){true: global, false: local}[c.global]
		code, answer, err := call(c.method, c.body)
		must(t, err)
		if text := fmt.Sprint(answer); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s %s (global: %t): %d %s, want %d and %q", c.method, c.body, c.global, code, text, c.code, c.want)
		}
	}
	if len(w.deleted) > 0 {
		t.Errorf("the data of shared volumes was deleted: %v", w.deleted)
	}
}

// TestSharedRecord forgets the record of a shared volume, as the agent does when this host does not
// use the volume. Docker can still show the volume, and the next Mount asks the cluster. While the
// cluster does not answer, only a volume that this host does not use is refused.
func TestSharedRecord(t *testing.T) {
	w, s := newSharedWorld(t)
	must(t, s.Create(t.Context(), sharedDocker, "db", nil))
	delete(w.volumes, "db")

	v, err := s.Get(sharedDocker, "db")
	must(t, err)
	if v.Status["state"] != "free" {
		t.Errorf("without a record: %+v", v)
	}

	w.fetchIs = errors.New("etcd does not answer")
	_, err = s.Mount(t.Context(), sharedDocker, "db", "c1")
	says(t, err, "etcd does not answer")
	w.want("references after the refusal", w.refs("db"))
	w.fetchIs = nil
	_, err = s.Mount(t.Context(), sharedDocker, "db", "c1")
	must(t, err)

	r := w.volumes["db"]
	r.Node.Staged = volume.Present // the claims of the fake do not stage the volume
	w.volumes["db"] = r
	w.fetchIs = errors.New("etcd does not answer")
	_, err = s.Mount(t.Context(), sharedDocker, "db", "c2")
	must(t, err)
	w.want("references", w.refs("db"), "c1", "c2")
}
