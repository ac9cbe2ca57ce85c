package api

import "time"

// Doctor is the result of an examination of the host: the differences between the agent's records
// and the state of the host.
type Doctor struct {
	Time   time.Time `json:"time"`
	TookMS float64   `json:"took_ms"` // milliseconds

	// The numbers of objects that were examined.
	Volumes int `json:"volumes"`
	Claims  int `json:"claims"`
	Plugins int `json:"plugins"`

	// Findings are the problems, the worst first.
	Findings []DoctorFinding `json:"findings"`
}

// Severities of findings, the worst first.
const (
	SeverityProblem = "problem" // something does not work, or data is at risk
	SeverityWarning = "warning" // it works now, but may fail next time
	SeverityNote    = "note"    // no harm, but worth knowing; it can be cleaned up
)

// DoctorFinding is one problem. docs/doctor.md has a section for each kind.
type DoctorFinding struct {
	// ID is the kind, a colon and the subject. It stays the same as long as the problem exists.
	ID       string `json:"id"`
	Kind     string `json:"kind"`
	Severity string `json:"severity"`
	Subject  string `json:"subject"`           // a volume, a plugin, a path, or "agent"
	What     string `json:"what"`              // the problem
	Then     string `json:"consequence"`       // the consequence, and whether data is safe
	Do       string `json:"command,omitempty"` // a command that solves the problem or shows more

	// Fix says in words how POST /v1/doctor/fix solves the problem; empty if it cannot.
	Fix string `json:"fix,omitempty"`
}

// DoctorFix asks the agent to fix findings.
type DoctorFix struct {
	IDs []string `json:"ids"`
}

// Outcomes of a fix.
const (
	FixDone   = "fixed"
	FixAsked  = "asked"  // the agent began to fix it: the next examination shows the result
	FixGone   = "gone"   // the finding no longer exists
	FixLeft   = "left"   // only a person can solve it
	FixFailed = "failed" // the fix failed
)

// DoctorFixed is the outcome for one finding.
type DoctorFixed struct {
	ID      string `json:"id"`
	Outcome string `json:"outcome"`
	Message string `json:"message,omitempty"`
}
