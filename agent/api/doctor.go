package api

import "time"

// Doctor is the result of a check of the host. It contains the differences between the agent's
// records and the state of the host.
type Doctor struct {
	Time   time.Time `json:"time"`
	TookMS float64   `json:"took_ms"` // in milliseconds

	// The following fields count the objects that the agent checked.
	Volumes int `json:"volumes"`
	Claims  int `json:"claims"`
	Plugins int `json:"plugins"`

	// Findings lists the problems, the most severe first.
	Findings []DoctorFinding `json:"findings"`
}

// The severities of findings, the worst first.
const (
	SeverityProblem = "problem" // something does not work, or data is at risk
	SeverityWarning = "warning" // everything works now, but may fail later
	SeverityNote    = "note"    // no harm, but a person may want to know or clean up
)

// DoctorFinding is one problem. docs/doctor.md has a section for each kind.
type DoctorFinding struct {
	// ID consists of the kind, a colon and the subject. It does not change as long as the problem
	// exists.
	ID       string `json:"id"`
	Kind     string `json:"kind"`
	Severity string `json:"severity"`
	Subject  string `json:"subject"`           // a volume, a plugin, a path, or "agent"
	What     string `json:"what"`              // the problem
	Then     string `json:"consequence"`       // the consequence, and whether data is safe
	Do       string `json:"command,omitempty"` // a command that solves the problem or shows details

	// Fix describes how POST /v1/doctor/fix solves the problem. It is empty if the agent cannot
	// solve it.
	Fix string `json:"fix,omitempty"`
}

// DoctorFix asks the agent to fix findings.
type DoctorFix struct {
	IDs []string `json:"ids"`
}

// The outcomes of a fix.
const (
	FixDone   = "fixed"
	FixAsked  = "asked"  // the agent has started the fix: the next check shows the result
	FixGone   = "gone"   // the finding no longer exists
	FixLeft   = "left"   // the agent cannot solve the problem, but a person can
	FixFailed = "failed" // the fix failed
)

// DoctorFixed is the outcome of the fix of one finding.
type DoctorFixed struct {
	ID      string `json:"id"`
	Outcome string `json:"outcome"`
	Message string `json:"message,omitempty"`
}
