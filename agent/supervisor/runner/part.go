package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
)

// Part contains everything that a runner needs to know about the part that it runs.
type Part struct {
	ID, Slot   string
	Definition *plugin.Definition
	Paths      part.Paths
	Values     func(variable string) string // returns the value of a variable of the plugin's file
	Boot       string                       // the id of the current boot of the host
	Logger     hclog.Logger

	Record   Record
	Progress Progress
	Mask     Mask
	Secrets  SecretResolver // if nil, the plugin's file must not refer to secrets
}

// Record stores which process serves the part, so that the next agent finds the process.
type Record interface {
	Process() plugin.Process
	// SaveProcess stores the process that serves the plugin, and the definition with which the
	// process was started.
	SaveProcess(ctx context.Context, it plugin.Process) error
	// ForgetProcess removes the process from the record in memory, because the process was not
	// started.
	ForgetProcess()
}

// Progress receives reports about the progress of a start. It can also interrupt the start.
type Progress interface {
	// Note changes the reason in the plugin's status.
	Note(reason string)
	// Unhealthy reports that no process serves the plugin's socket.
	Unhealthy(reason string)
	// Wake returns a channel that receives a value when the result of Due may have changed.
	Wake() <-chan struct{}
	// Due reports whether the start must be interrupted, for example because the definition has
	// changed.
	Due() bool
}

// Mask removes secrets from texts.
type Mask interface {
	Add(secrets call.Secrets)
	Scrub(text string) string
}

// SecretResolver reads the secrets that plugin files refer to.
type SecretResolver interface {
	ResolveSecret(ctx context.Context, ref call.SecretRef) (call.Secret, error)
}

// ErrDue is returned if a wait ended because Due returned true.
var ErrDue = errors.New("the plugin's definition changes")

// Wait waits for the duration d, or without a time limit if d is 0. It returns nil early when one
// of the channels first and second delivers a value or is closed. It returns ctx.Err() when ctx
// ends, and ErrDue when Due returns true.
func Wait(ctx context.Context, p Progress, d time.Duration, first, second <-chan struct{}) error {
	var over <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}

	for {
		select {
		case <-over:
			return nil
		case <-first:
			return nil
		case <-second:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-p.Wake():
			if p.Due() {
				return ErrDue
			}
		}
	}
}

// HideGiven makes the mask hide the secrets that an earlier agent passed to a process. It reads
// them from the environment of the process, because the files that contain the secrets may have
// changed since.
func (p Part) HideGiven(pid int) {
	for name, v := range p.Definition.Env() {
		if v.Secret != nil {
			p.Mask.Add(call.Secrets{name: call.NewSecret(Environ(pid, name))})
		}
	}
}

// Env returns the environment variables that the plugin's file sets. The values of secrets go only
// into the environment of the child process.
func (p Part) Env(ctx context.Context) ([]string, error) {
	var env []string
	set := p.Definition.Env()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		v := set[name]
		if v.Secret == nil {
			s, err := pluginfile.Expand(v.Value, p.Values)
			if err != nil {
				return nil, fmt.Errorf("cannot expand %s: %w", name, err)
			}

			env = append(env, name+"="+s)
			continue
		}
		if p.Secrets == nil {
			return nil, fmt.Errorf("cannot read the secret for %s: this agent cannot resolve secrets", name)
		}

		secret, err := p.Secrets.ResolveSecret(ctx, *v.Secret)
		if err != nil {
			return nil, fmt.Errorf("cannot read the secret for %s: %w", name, err)
		}
		if strings.ContainsRune(secret.Reveal(), 0) {
			return nil, fmt.Errorf("cannot use the secret for %s: it contains a zero byte", name)
		}

		p.Mask.Add(call.Secrets{name: secret})
		env = append(env, name+"="+secret.Reveal())
	}

	return env, nil
}
