package service

import (
	"context"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/doctor"
)

// Doctor converts the doctor's findings to API types.
type Doctor struct{ Of *doctor.Doctor }

// Examine looks at everything once.
func (d Doctor) Examine(ctx context.Context) api.Doctor {
	r := d.Of.Examine(ctx)
	out := api.Doctor{
		Time: r.At.UTC(), TookMS: float64(r.Took.Microseconds()) / 1000, Volumes: r.Volumes, Claims: r.Claims, Plugins: r.Plugins, Findings: []api.DoctorFinding{},
	}
	for _, f := range r.Findings {
		out.Findings = append(out.Findings, api.DoctorFinding{
			ID: f.ID, Kind: f.Kind, Severity: string(f.Severity), Subject: f.Subject, What: f.What, Then: f.Then, Do: f.Do, Fix: f.Fix,
		})
	}

	return out
}

// Fix runs the fixes with these ids. The doctor runs only fixes that are safe.
func (d Doctor) Fix(ctx context.Context, ids []string) []api.DoctorFixed {
	out := []api.DoctorFixed{}
	for _, done := range d.Of.Fix(ctx, ids) {
		out = append(out, api.DoctorFixed(done))
	}
	return out
}
