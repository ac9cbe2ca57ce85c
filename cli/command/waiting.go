package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/output"
)

const (
	// ClaimTimeout is the default timeout of a claim. It is shorter than the 90 seconds after which
	// systemd gives up starting a unit.
	ClaimTimeout = 80 * time.Second

	// AnswerGrace is how long volctl still waits for an answer after the timeout, so that the agent
	// can report the timeout.
	AnswerGrace = 15 * time.Second

	// RetryEvery is the interval between attempts to reconnect to the agent.
	RetryEvery = 250 * time.Millisecond
)

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// StreamEnd returns the error for a stream that has ended. If follow is set, the end is an error
// unless the user pressed Ctrl-C.
func StreamEnd(ctx context.Context, follow bool, err error) error {
	switch {
	case follow && over(ctx):
		return nil
	case follow && err == nil:
		return &api.Error{Code: api.CodeUnreachable, Message: "the agent closed it", Hint: "systemctl status volagent"}
	}
	return err
}

func over(ctx context.Context) bool { return ctx.Err() != nil }

// Dropped reports whether err means that the agent accepted the connection but disconnected before
// it answered.
func Dropped(err error) bool {
	var e *api.Error
	return errors.As(err, &e) && e.Details[apiclient.DetailDropped] != ""
}

// PluginProgress describes the state of a plugin that is not ready. The text is empty if the plugin
// is ready.
func PluginProgress(client *apiclient.Client, id string) output.Status {
	return func(ctx context.Context) string {
		p, err := client.Plugin(ctx, id)
		if err != nil || p.State == api.PluginReady {
			return ""
		}
		return fmt.Sprintf("waiting for plugin %q, which is %s", id, output.Joined(": ", p.State, p.Reason))
	}
}

// VolumeProgress describes the current step of a volume. If the volume's plugin is not ready, it
// describes the state of the plugin instead. The argument plugin may be empty if the volume exists.
func VolumeProgress(client *apiclient.Client, id, plugin string) output.Status {
	return func(ctx context.Context) string {
		v, err := client.Volume(ctx, id)
		if err == nil {
			plugin = v.Spec.PluginID
		}

		if plugin != "" {
			if words := PluginProgress(client, plugin)(ctx); words != "" {
				return words
			}
		}

		if err != nil || v.Attempt == nil {
			return ""
		}
		if at := v.Attempt; at.Waits != "" || at.Step == "wait" {
			return at.Waits
		}
		// The progress must fit on one line, so show only the processes that block the unmount.
		if at := v.Attempt; len(at.HeldBy) > 0 {
			return output.Joined(" ", at.Step, "is held up by", at.HeldBy[0], andMore(len(at.HeldBy)-1))
		}

		return output.Joined(": ", v.Attempt.Step, output.CodeWords(v.Attempt.Code), v.Attempt.Message, v.Attempt.Progress)
	}
}

func andMore(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("and %d more", n)
}
