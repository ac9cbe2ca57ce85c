package volume_test

import (
	"errors"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestCallErrorInWords checks that the text of an error contains the plugin's code, and separates
// the users of a mount from the plugin's message.
func TestCallErrorInWords(t *testing.T) {
	for want, e := range map[string]volume.CallError{
		"NodeStageVolume: Internal: no":                          {Step: "NodeStageVolume", Code: "Internal", Message: "no"},
		"bind: cannot use /srv as a mount point":                 {Step: "bind", Code: volume.CodeHost, Message: "cannot use /srv as a mount point"},
		"NodeUnpublishVolume: /t is still mounted, held by a; b": {Step: "NodeUnpublishVolume", Code: volume.CodeUnverified, Message: "/t is still mounted", HeldBy: []string{"a", "b"}},
	} {
		if got := e.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestUnknownOutcome checks which codes leave the effect of a call unknown.
func TestUnknownOutcome(t *testing.T) {
	for code, want := range map[string]bool{
		"Canceled": true, "DeadlineExceeded": true, "Unavailable": true, "Unknown": true, "Internal": true, "DataLoss": true,
		"Aborted": false, "InvalidArgument": false, "AlreadyExists": false, "OutOfRange": false, "NotFound": false, "ResourceExhausted": false,
		"FailedPrecondition": false, "Unimplemented": false, "Unauthenticated": false, "PermissionDenied": false,
		volume.CodeHost: false, volume.CodeUnverified: false,
	} {
		if got := (&volume.CallError{Code: code, Answered: true}).Unknown(); got != want {
			t.Errorf("%s: unknown is %t", code, got)
		}
		if !(&volume.CallError{Code: code}).Unknown() {
			t.Errorf("%s without an answer is known", code)
		}
	}
}

func TestAwaited(t *testing.T) {
	call := &volume.CallError{Step: "s", Code: "Internal"}
	err := error(&volume.Awaited{Err: volume.Errorf(volume.ErrTimeout, "timed out"), At: volume.Attempt{Err: call, Tries: 2}})
	var ce *volume.CallError
	var de *volume.Error
	if !errors.As(err, &ce) || ce != call || !errors.As(err, &de) || !errors.Is(err, volume.ErrTimeout) || err.Error() != "timed out" {
		t.Errorf("%v holds %v and %v", err, ce, de)
	}
	if errors.As(error(&volume.Awaited{Err: errors.New("x")}), &ce); ce != call {
		t.Error("one without a failure holds one")
	}
}
