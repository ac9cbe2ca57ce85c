package plugintest

import (
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Verdict is what a check found.
type Verdict string

// The verdicts.
const (
	OK          Verdict = "ok"
	WorksAround Verdict = "works-around" // it deviates, and the agent copes
	Broken      Verdict = "broken"       // the agent cannot work safely with it
	Skipped     Verdict = "skipped"      // not tried; the sentence says why
)

// Result is how one check went.
type Result struct {
	Check   string
	Verdict Verdict
	Took    time.Duration
	Said    string
}

// Summary is the plugin, as the whole test found it.
type Summary struct {
	Driver, Version, NodeID string
	// Mounts is "kernel" or "fuse"; empty if nothing was mounted.
	Mounts                       string
	FSType                       string // the kernel's name of the file system
	Attaches, Stages, Creates    bool
	StageMounts                  bool // a stage mounts something
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

// finding is a verdict with its sentence.
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

// code is the gRPC code of a call's error, "OK" for none.
func code(err error) string {
	var ce *volume.CallError
	switch {
	case err == nil:
		return "OK"
	case errors.As(err, &ce):
		return ce.Code
	default:
		return volume.CodeHost
	}
}

// uncertain reports whether a failed call may have an effect.
func uncertain(err error) bool {
	var ce *volume.CallError
	return err != nil && (!errors.As(err, &ce) || ce.Uncertain())
}

// words are a call's error without the step, which the check names.
func words(err error) string {
	var ce *volume.CallError
	if errors.As(err, &ce) {
		return ce.Code + ": " + ce.Message
	}
	return err.Error()
}
