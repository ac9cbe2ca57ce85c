package harness

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

// DoctorReport contains the findings of volctl doctor. It omits the finding that the agent and
// process 1 are in different mount namespaces, because every test has this finding.
type DoctorReport struct {
	T testing.TB `json:"-"`
	api.Doctor
	Fixed []api.DoctorFixed `json:"fixed"`
}

// Doctor runs volctl doctor and returns its findings. The command must exit with code 1 if there
// are findings, and with code 0 otherwise.
func Doctor(h *Host, args ...string) DoctorReport {
	h.T.Helper()
	r := h.Try(append([]string{"doctor", "-o", "json"}, args...)...)
	d := DoctorReport{T: h.T}
	if err := json.Unmarshal([]byte(r.Out), &d); err != nil || r.Code != min(len(d.Findings), 1) {
		h.T.Fatalf("exit %d, %v:\n%s%s", r.Code, err, r.Out, r.Err)
	}
	d.Findings = slices.DeleteFunc(d.Findings, func(f api.DoctorFinding) bool { return f.Kind == "host-namespace" })
	return d
}

// IDs returns the ids of all findings, sorted.
func (d DoctorReport) IDs() (ids []string) {
	for _, f := range d.Findings {
		ids = append(ids, f.ID)
	}
	slices.Sort(ids)
	return ids
}

// Finding returns the finding with the given id, which must exist.
func (d DoctorReport) Finding(id string) api.DoctorFinding {
	d.T.Helper()
	i := slices.IndexFunc(d.Findings, func(f api.DoctorFinding) bool { return f.ID == id })
	if i < 0 {
		d.T.Fatalf("no finding %s among\n  %s", id, strings.Join(d.IDs(), "\n  "))
	}
	return d.Findings[i]
}

// StartWithFstab starts a host that has its own fstab file and its own directory of mount units.
func StartWithFstab(t *testing.T) Recorded {
	t.Helper()
	h := NewRecorded(t, "10s", nil)
	h.Env = append(h.Env, "LIBMOUNT_FSTAB="+filepath.Join(h.Dir, "fstab"), "SYSTEMD_UNIT_PATH="+filepath.Join(h.Dir, "units"))
	h.Start("rec")
	return h
}

// FixFindings asks the agent to fix the findings with the given ids.
func FixFindings(h *Host, ids ...string) []api.DoctorFixed {
	h.T.Helper()
	fixed, err := apiclient.New(h.Socket()).DoctorFix(h.T.Context(), ids)
	h.Must(err)
	return fixed
}
