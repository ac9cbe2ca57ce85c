package containers_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestRestoreRuntime checks that a restore recreates docker's volume names, the references of
// containers to these names, and the claim that the containers share. A container that was started
// after the backup keeps its reference too. On another host, a restore recreates no names, because
// no container there can refer to them.
func TestRestoreRuntime(t *testing.T) {
	t.Parallel()
	s := newServed(t, &harness.Box{Name: "docker"}) // the test needs no docker daemon
	call := func(method, name, id string, opts map[string]string) map[string]any {
		t.Helper()
		code, answer := s.call("VolumeDriver."+method, map[string]any{"Name": name, "ID": id, "Opts": opts})
		if code != 200 {
			t.Fatalf("%s %s: %v", method, name, answer)
		}
		return answer
	}
	call("Create", "data", "", map[string]string{"plugin": "local", "ro": "true"})
	call("Create", "mine", "", map[string]string{"plugin": "local"})
	path := fmt.Sprint(call("Mount", "data", "c1", nil)["Mountpoint"])
	file := harness.Backup(s.Host)
	call("Mount", "data", "c2", nil)
	mounts := s.Mounts()
	harness.LoseState(s.Host)
	s.Start("local")
	s.holds()
	if _, out := harness.Restore(s.Host, 0, file); out["docker data"] != api.OutcomeRestored || out["docker mine"] != api.OutcomeRestored {
		t.Fatalf("got %v", out)
	}
	s.holds("data docker mounted docker 2")
	if got := s.Mounts(); got != mounts {
		t.Errorf("the mounts are\n%s\nand were\n%s", got, mounts)
	}
	if _, out := harness.Restore(s.Host, 0, file); out["docker data"] != api.OutcomePresent {
		t.Errorf("the second time: %v", out)
	}
	call("Unmount", "data", "c1", nil) // container c2 still uses the volume
	s.holds("data docker mounted docker 1")
	if got := fmt.Sprint(call("Mount", "data", "c3", nil)["Mountpoint"]); got != path {
		t.Errorf("mounted at %s, and was at %s", got, path)
	}
	if code, answer := s.call("VolumeDriver.Create", map[string]any{"Name": "data"}); code == 200 || !strings.Contains(fmt.Sprint(answer), "a different ro") {
		t.Errorf("its options did not come back: %d %v", code, answer)
	}
	for _, id := range []string{"c2", "c3", "since-the-backup"} {
		call("Unmount", "data", id, nil)
	}
	s.clean()

	o := harness.NewHost(t)
	o.OmitFlags, o.MoreArgs = []string{"--node-id"}, []string{"--node-id", "other"}
	o.Start("local")
	if _, out := harness.Restore(o, 0, file); out["docker data"] != api.OutcomeRestored {
		t.Fatalf("got %v", out)
	}
	if out, code := harness.Inspect(o); code != 0 || !strings.Contains(out, `name "data" of docker  volume "data"  without references`) {
		t.Errorf("inspect: exit %d\n%s", code, out)
	}
}
