package fencehook

import (
	"fmt"
	"strings"
)

// ending describes how a call of a hook ended.
type ending struct {
	started bool
	failure error  // the program could not be started, or did not end by itself
	code    int    // the exit status, if failure is nil and signal is ""
	signal  string // the signal that killed the program
	stdout  string // the last part of the standard output, as the program wrote it
	output  string // the last part of both outputs, for people
}

// answer is the meaning of a call.
type answer int

const (
	failed  answer = iota // off, on: the hook has not done it, or nothing is known about it
	done                  // off, on: the hook has done it
	unknown               // status: the hook does not know
	isOn                  // status: the host is on
	isOff                 // status: the host is off
	notMine               // the hook does not serve the host, and has changed nothing
)

// power returns the power that an answer to status reports.
func (a answer) power() Power {
	switch a {
	case isOn:
		return PowerOn
	case isOff:
		return PowerOff
	default:
		return PowerUnknown
	}
}

// decision is the meaning of a call, and its wording for people.
type decision struct {
	answer answer
	said   string
}

// These are the exit statuses of hooks.
const (
	exitDone    = 0 // off, on
	exitOn      = 0 // status
	exitOff     = 2 // status
	exitNotMine = 3 // only of executables; fence agents once used it for a login that was denied
)

// decide returns the meaning of a call.
//
//	action   exit status   executable       fence agent
//	off, on  0             done             done
//	         3             not this host    failed
//	         other         failed           failed
//	status   0             on               on
//	         2             off *            off *
//	         3             not this host    unknown
//	         other         unknown          unknown
//
// A program that was killed, or could not be started, has failed.
//
// (*) Only if the program also prints that the host is off; else unknown. Shells and Python end with
// status 2 if they cannot read a script. Many tools, such as grep, end with 2 after an error.
func decide(kind Kind, action Action, e ending) decision {
	bad := failed
	if action == ActionStatus {
		bad = unknown
	}

	switch {
	case e.failure != nil:
		return decision{bad, fmt.Sprintf("%s failed: %s", action, e.failure)}
	case e.signal != "":
		return decision{bad, fmt.Sprintf("%s failed: it was killed by signal %s%s", action, e.signal, lastLine(e.output))}
	case e.code == exitNotMine && kind == KindExecutable:
		return decision{notMine, "the hook does not serve this host"}
	case action != ActionStatus && e.code == exitDone:
		return decision{done, fmt.Sprintf("%s succeeded", action)}
	case action == ActionStatus && e.code == exitOn:
		return decision{isOn, "status says on"}
	case action == ActionStatus && e.code == exitOff && saysOff(kind, e.stdout):
		return decision{isOff, "status says off"}
	case action == ActionStatus && e.code == exitOff:
		return decision{bad, fmt.Sprintf("status exited with status 2, but did not print %q%s", offLine(kind), lastLine(e.output))}
	default:
		return decision{bad, fmt.Sprintf("%s failed with exit status %d%s", action, e.code, lastLine(e.output))}
	}
}

// offLine returns the line with which a program confirms that the host is off.
func offLine(kind Kind) string {
	if kind == KindAgent {
		return "Status: OFF"
	}
	return "off"
}

// saysOff reports whether the last line of the standard output confirms that the host is off.
func saysOff(kind Kind, stdout string) bool {
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	return strings.TrimSpace(lines[len(lines)-1]) == offLine(kind)
}

// maxLastLine is the maximum number of bytes of the output in a reason.
const maxLastLine = 200

// lastLine returns the last line of an output as an addition to a reason.
func lastLine(output string) string {
	output = strings.TrimSpace(output)
	line := strings.TrimSpace(output[strings.LastIndexByte(output, '\n')+1:])
	if line == "" {
		return ""
	}
	return ": " + head(line, maxLastLine)
}
