package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// ill returns the report for a host with one finding of each severity. The doctor can fix two of
// the findings.
func ill() api.Doctor {
	return api.Doctor{
		Time: now, TookMS: 12, Volumes: 12, Claims: 11, Plugins: 3,
		Findings: []api.DoctorFinding{
			{
				ID: "mount-dead:/var/lib/volagent/csi/nfs/staging/data", Kind: "mount-dead", Severity: api.SeverityProblem, Subject: "data",
				What: `the mount at /var/lib/volagent/csi/nfs/staging/data (staged, volume "data") is dead: transport endpoint is not connected`,
				Then: "programs cannot open files there", Do: "volctl volume status data", Fix: "mount the volume again",
			},
			{
				ID: "disk-full:/var/lib/volagent", Kind: "disk-full", Severity: api.SeverityWarning, Subject: "agent",
				What: "the disk is nearly full \x1b[31m", Then: "no volume can be claimed", Do: "df /var/lib/volagent",
			},
			{
				ID: "leftover-empty:/var/lib/volagent/csi/nfs/staging/old", Kind: "leftover-empty", Severity: api.SeverityNote, Subject: "/var/lib/volagent/csi/nfs/staging/old",
				What: "/var/lib/volagent/csi/nfs/staging/old is empty", Then: "it does no harm", Do: "rmdir /var/lib/volagent/csi/nfs/staging/old", Fix: "remove it, if it is still empty",
			},
		},
	}
}

// patient returns a fake agent that reports the findings in d until they have been fixed.
func patient(d api.Doctor) *fake {
	f := world()
	f.on["GET /v1/doctor"] = func(*http.Request) (any, error) { return d, nil }
	f.on["POST /v1/doctor/fix"] = func(r *http.Request) (any, error) {
		var ask api.DoctorFix
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
			return nil, err
		}
		var fixed []api.DoctorFixed
		for _, id := range ask.IDs {
			fixed = append(fixed, api.DoctorFixed{ID: id, Outcome: api.FixDone, Message: "it was done"})
		}
		d.Findings = slices.DeleteFunc(d.Findings, func(f api.DoctorFinding) bool { return f.Fix != "" })
		return fixed, nil
	}
	return f
}

func TestDoctor(t *testing.T) {
	well := api.Doctor{Time: now, Volumes: 12, Claims: 11, Plugins: 3, Findings: []api.DoctorFinding{}}
	many := api.Doctor{Time: now, Volumes: 1}
	for i := range 13 {
		path := fmt.Sprintf("/csi/p/staging/%02d", i)
		many.Findings = append(many.Findings, api.DoctorFinding{ID: "leftover-empty:" + path, Kind: "leftover-empty", Severity: api.SeverityNote, Subject: path, What: path + " is empty", Fix: "remove it"})
	}
	one := ill()
	one.Findings = one.Findings[1:2]
	text := session(with(t, patient(well)), words("doctor", "doctor -o json", "doctor --fix -y")...)
	text += session(with(t, patient(ill())), words("doctor", "doctor -q", "doctor -o json", "doctor --fix", "doctor -y", "doctor --fix -y", "doctor --fix -y -o json", "doctor x")...)
	text += session(with(t, patient(ill())), words("doctor --fix -y -o yaml")...)
	text += session(with(t, patient(one)), words("doctor --fix -y")...)
	text += session(with(t, patient(many)), words("doctor", "doctor -o wide -q")...)
	golden(t, filepath.Join("testdata", "doctor.txt"), text)
}

// TestDoctorAsks checks "volctl doctor --fix" on a terminal. It must show the findings and ask for
// confirmation, and must change nothing unless the answer is yes.
func TestDoctorAsks(t *testing.T) {
	f := patient(ill())
	r := with(t, f)
	r.terminal, r.stdin = true, "n\n"
	res := r.volctl("doctor", "--fix")
	if res.code != 1 || !strings.Contains(res.stdout, "Fix      mount the volume again") || !strings.Contains(res.stderr, "not confirmed") || len(f.sent()) != 1 {
		t.Errorf("got %+v", res)
	}
	r.stdin = "y\n"
	res = r.volctl("doctor", "--fix")
	if sent := f.sent(); res.code != 1 || len(sent) != 3 || sent[1] != `POST /v1/doctor/fix {"ids":["mount-dead:/var/lib/volagent/csi/nfs/staging/data","leftover-empty:/var/lib/volagent/csi/nfs/staging/old"]}` {
		t.Errorf("got %+v, sent %q", res, sent)
	}
}

// TestDoctorAlone checks "volctl doctor" without an agent. It must report why the agent does not
// answer, and mistakes in fstab.
func TestDoctorAlone(t *testing.T) {
	dir := shortDir(t)
	table := filepath.Join(dir, "fstab")
	text := "data /nowhere/at/all csi defaults,nofail,alocc=web 0 0\n"
	if err := os.WriteFile(table, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &run{ctx: t.Context(), socket: filepath.Join(dir, "s"), env: map[string]string{"LIBMOUNT_FSTAB": table, "SYSTEMD_UNIT_PATH": dir}}
	var all string
	for _, unit := range []map[string]string{
		nil,
		{"LoadState": "not-found", "ActiveState": "inactive"},
		{"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "disabled"},
		{"LoadState": "masked", "ActiveState": "inactive", "UnitFileState": "masked"},
		{"LoadState": "loaded", "ActiveState": "failed", "UnitFileState": "enabled", "Result": "exit-code"},
		{"LoadState": "loaded", "ActiveState": "activating", "SubState": "auto-restart", "UnitFileState": "enabled", "Result": "signal"},
		{"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"},
	} {
		r.service = unit
		all += fmt.Sprintf("# %v\n", unit) + session(r, words("doctor")...)
	}
	all += session(r, words("doctor --fix -y -o json")...)
	golden(t, filepath.Join("testdata", "doctor_alone.txt"), strings.ReplaceAll(all, dir, "DIR"))
	if res := r.volctl("doctor"); res.code != exitUnreachable {
		t.Errorf("exit %d", res.code)
	}
}
