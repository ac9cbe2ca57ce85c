package guest_test

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/api"
)

// doctor runs volctl doctor in the guest and returns the ids of the findings. It omits findings
// that depend on the state of plugins or on other tests.
func (g *guest) doctor() (ids []string) {
	g.t.Helper()
	r := g.try("volctl", "doctor", "-o", "json")
	var d api.Doctor
	if err := json.Unmarshal([]byte(r.Out), &d); err != nil || r.Code != min(len(d.Findings), 1) {
		g.t.Fatalf("exit %d, %v: %s%s", r.Code, err, r.Out, r.Err)
	}
	for _, f := range d.Findings {
		// Each guest sees all loop devices of the machine, including those of other tests.
		if f.Kind != "plugin-restarts" && f.Kind != "plugin-down" && f.Kind != "device-orphan" {
			ids = append(ids, f.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// testDoctor checks the findings about the agent's unit, the units of plugins, and a mount unit.
func (g *guest) testDoctor() {
	want := []string{"host-unit:volagent.service", "plugin-unit-order:csi-again.service", "plugin-unit-order:csi-fuse.service", "plugin-unit-order:csi-once.service"}
	if got := g.doctor(); !slices.Equal(got, want) {
		g.t.Fatalf("found %q, want %q", got, want)
	}
	g.run("systemctl", "enable", "volagent.service")
	for _, unit := range []string{"csi-again", "csi-fuse", "csi-once"} {
		g.run("mkdir", "-p", "/etc/systemd/system/"+unit+".service.d")
		g.write("/etc/systemd/system/"+unit+".service.d/order.conf", "[Unit]\nBefore=volagent.service\n")
	}
	g.run("systemctl", "daemon-reload")
	if got := g.doctor(); len(got) != 0 {
		g.t.Errorf("still found %q", got)
	}
	// This mount unit has no order after the agent. Its volume, its directory and the mount helper
	// do not exist.
	g.write("/etc/systemd/system/srv-x.mount", "[Mount]\nWhat=nosuch\nWhere=/srv/x\nType=csi\nOptions=_netdev\n")
	if got, want := g.doctor(), []string{"fstab-dir:/srv/x", "fstab-volume:/srv/x", "host-helper:mount.csi", "unit-order:/srv/x"}; !slices.Equal(got, want) {
		g.t.Errorf("found %q, want %q", got, want)
	}
	g.run("rm", "/etc/systemd/system/srv-x.mount")
	g.run("systemctl", "stop", "volagent.service")
	if r := g.try("volctl", "doctor"); r.Code != 7 || !strings.Contains(r.Out, "volagent.service is not started") || !strings.Contains(r.Out, "systemctl start volagent") {
		g.t.Errorf("with no agent: exit %d, %s%s", r.Code, r.Out, r.Err)
	}
	g.run("systemctl", "start", "volagent.service")
	g.run("systemctl", "disable", "volagent.service") // the other subtests need the unit disabled
	for _, unit := range []string{"csi-again", "csi-fuse", "csi-once"} {
		g.run("rm", "-r", "/etc/systemd/system/"+unit+".service.d")
	}
	g.run("systemctl", "daemon-reload")
}
