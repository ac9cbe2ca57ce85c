package provision

import (
	"errors"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

// noVolume returns the error for an id without a volume.
func noVolume(id string) error {
	return volume.Errorf(volume.ErrNotFound, "no volume %q", id).WithHint("volctl volume list")
}

// unfinishedDelete returns the error for an operation on a volume whose delete has not finished.
func unfinishedDelete(id string) error {
	return volume.Errorf(volume.ErrRefused, "volume %q: %s has not finished", id, volume.Deleting).
		WithHint("%s", "repeat the delete: "+suggest.Command("volctl volume delete %s -y", id))
}

// withCall adds the failed call to the error words, so that the caller can report both. If cause is
// not a failed call, it returns words unchanged.
func withCall(step call.Method, cause error, words *volume.Error) error {
	var ce *volume.CallError
	if !errors.As(cause, &ce) {
		return words
	}
	return &volume.Awaited{Err: words, At: volume.Attempt{Action: volume.Action{Kind: step}, Err: ce, Tries: 1}}
}

// kindOf returns the kind of error to report for a failed call whose outcome is unknown.
func kindOf(err error) error {
	var ce *volume.CallError
	switch {
	case errors.As(err, &ce) && ce.Code == volume.CodeDeadlineExceeded:
		return volume.ErrTimeout
	case errors.As(err, &ce) && (ce.Code == volume.CodeUnavailable || ce.Code == volume.CodeNoExecutor):
		return volume.ErrPluginUnavailable
	case ce == nil:
		var e *volume.Error
		if errors.As(err, &e) {
			return e.Kind
		}
		return nil
	default:
		return nil
	}
}

// refusal returns the error for a request that the plugin rejects. It returns all other errors
// unchanged.
func refusal(pluginID string, cause error) error {
	var ce *volume.CallError
	if !errors.As(cause, &ce) {
		return cause
	}

	if ce.Code == volume.CodeNoExecutor {
		return volume.Errorf(volume.ErrPluginUnavailable, "%s", ce.Message).WithHint("start the agent of a host that has the controller")
	}

	kind := map[string]error{
		volume.CodeInvalidArgument: volume.ErrInvalid, volume.CodeOutOfRange: volume.ErrInvalid,
		volume.CodeFailedPrecondition: volume.ErrRefused, volume.CodeUnimplemented: volume.ErrRefused,
	}[ce.Code]
	if kind == nil {
		return cause
	}

	return volume.Errorf(kind, "plugin %q refuses the request: %s", pluginID, ce.Message)
}

// stillWorking reports whether the plugin may still be working on the failed call.
func stillWorking(ce *volume.CallError) bool {
	return ce.Code == volume.CodeAborted || ce.Code == volume.CodeDeadlineExceeded
}

// rejection returns the error for a snapshot request that the plugin rejects. It returns nil if the
// call failed for another reason.
func rejection(pluginID string, ce *volume.CallError) *volume.Error {
	switch ce.Code {
	case volume.CodeNotFound:
		return volume.Errorf(volume.ErrNotFound, "plugin %q reports \"not found\": %s", pluginID, ce.Message)
	case volume.CodeFailedPrecondition, volume.CodeResourceExhausted, volume.CodeAlreadyExists:
		return volume.Errorf(volume.ErrRefused, "plugin %q refuses the request: %s", pluginID, ce.Message)
	case volume.CodeUnimplemented:
		return volume.Errorf(volume.ErrRefused, "plugin %q does not support the request: %s", pluginID, ce.Message)
	case volume.CodeInvalidArgument, volume.CodeOutOfRange:
		return volume.Errorf(volume.ErrInvalid, "plugin %q refuses the request: %s", pluginID, ce.Message)
	case volume.CodePermissionDenied, volume.CodeUnauthenticated:
		return volume.Errorf(volume.ErrRefused, "plugin %q refuses the request: %s", pluginID, ce.Message).WithHint("give the secrets that the plugin needs: --secret KEY=file:PATH")
	}

	return nil
}
