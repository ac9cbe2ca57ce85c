package plugintest

import (
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Verdict is the outcome of a check.
type Verdict string

// These are the verdicts.
const (
	OK          Verdict = "ok"
	WorksAround Verdict = "works-around" // the plugin deviates from the specification, and the agent handles it
	Broken      Verdict = "broken"       // the agent cannot work safely with the plugin
	Skipped     Verdict = "skipped"      // the check did not run; Said gives the reason
)

// Result is the result of one check.
type Result struct {
	Check   string
	Verdict Verdict
	Took    time.Duration
	Said    string
}

// Summary describes the plugin and counts the verdicts of a test.
type Summary struct {
	Driver, Version, NodeID string
	// Mounts is "kernel" or "fuse"; empty if the test has seen no mount.
	Mounts                       string
	FSType                       string // the kernel's name of the file system type
	Attaches, Stages, Creates    bool
	StageMounts                  bool // whether NodeStageVolume makes a mount
	OK, WorkAround, Broken, Skip int
}

func (s *Summary) count(v Verdict) {
	switch v {
	case OK:
		s.OK++
	case WorksAround:
		s.WorkAround++
	case Broken:
		s.Broken++
	default:
		s.Skip++
	}
}

// finding is a verdict with its explanation.
type finding struct {
	verdict Verdict
	said    string
}

func fine(format string, args ...any) finding { return finding{OK, fmt.Sprintf(format, args...)} }
func copes(format string, args ...any) finding {
	return finding{WorksAround, fmt.Sprintf(format, args...)}
}
func broken(format string, args ...any) finding { return finding{Broken, fmt.Sprintf(format, args...)} }
func skipped(format string, args ...any) finding {
	return finding{Skipped, fmt.Sprintf(format, args...)}
}

// code returns the gRPC code of a call's error, or "OK" if err is nil.
func code(err error) string {
	var ce *volume.CallError
	switch {
	case err == nil:
		return volume.CodeOK
	case errors.As(err, &ce):
		return ce.Code
	default:
		return volume.CodeHost
	}
}

// uncertain reports whether a failed call may have had an effect.
func uncertain(err error) bool {
	var ce *volume.CallError
	return err != nil && (!errors.As(err, &ce) || ce.Uncertain())
}

// words returns the error message of a call without the name of the call, because the name of the
// check implies it.
func words(err error) string {
	var ce *volume.CallError
	if errors.As(err, &ce) {
		return ce.Code + ": " + ce.Message
	}
	return err.Error()
}
