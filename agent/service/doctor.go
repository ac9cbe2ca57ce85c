package service

import (
	"context"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/volmgr/volume"
)

// Examiner compares the agent's records with the state of the host.
type Examiner interface {
	Examine(ctx context.Context) doctor.Report

	// Fix runs the safe fixes of the findings with the given ids.
	Fix(ctx context.Context, ids []string) []doctor.Done
}

// Doctor answers requests to find and fix problems of the host.
type Doctor struct{ do Examiner }

// Examine returns the findings of one examination of the host.
func (d Doctor) Examine(ctx context.Context) api.Doctor {
	r := d.do.Examine(ctx)
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

// Fix runs the safe fixes of the findings that the request names.
func (d Doctor) Fix(ctx context.Context, by Caller, req api.DoctorFix) ([]api.DoctorFixed, error) {
	if err := by.CheckWrite(); err != nil {
		return nil, err
	}
	if len(req.IDs) == 0 {
		return nil, asAPI(volume.Errorf(volume.ErrInvalid, "the request names no finding to fix").WithHint("volctl doctor -o json shows the ids"))
	}

	out := []api.DoctorFixed{}
	for _, done := range d.do.Fix(ctx, req.IDs) {
		out = append(out, api.DoctorFixed(done))
	}
	return out, nil
}
