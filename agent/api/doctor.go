package api

import "time"

// Doctor is what an examination of the host found: what is recorded beside what is
// there.
type Doctor struct {
	Time   time.Time `json:"time"`
	TookMS float64   `json:"took_ms"` // milliseconds
	// How many were looked at.
	Volumes int `json:"volumes"`
	Claims  int `json:"claims"`
	Plugins int `json:"plugins"`
	// Findings are what does not fit, the worst first.
	Findings []DoctorFinding `json:"findings"`
}

// Severities of findings, the worst first.
const (
	SeverityProblem = "problem" // something does not work, or data is at stake
	SeverityWarning = "warning" // it works, and may not the next time
	SeverityNote    = "note"    // nothing suffers; it is worth knowing, and can be cleared away
)

// DoctorFinding is one thing that does not fit. docs/doctor.md has a section for each kind.
type DoctorFinding struct {
	// ID is the kind, a colon, and what it is about. It is the same as long as the
	// matter lasts.
	ID       string `json:"id"`
	Kind     string `json:"kind"`
	Severity string `json:"severity"`
	Subject  string `json:"subject"`           // a volume, a plugin, a path, or "agent"
	What     string `json:"what"`              // what is so
	Then     string `json:"consequence"`       // what comes of it, and whether data is safe
	Do       string `json:"command,omitempty"` // what helps, or shows more
	// Fix is what POST /v1/doctor/fix does about it, in words; empty if nothing.
	Fix string `json:"fix,omitempty"`
}

// DoctorFix asks for something to be done about findings.
type DoctorFix struct {
	IDs []string `json:"ids"`
}

// What became of a finding that was to be fixed.
const (
	FixDone   = "fixed"
	FixAsked  = "asked"  // it was begun: the next examination tells how it went
	FixGone   = "gone"   // there is no such finding any more
	FixLeft   = "left"   // nothing is done about it but by a person
	FixFailed = "failed" // it could not be done
)

// DoctorFixed is what became of one finding.
type DoctorFixed struct {
	ID      string `json:"id"`
	Outcome string `json:"outcome"`
	Message string `json:"message,omitempty"`
}
