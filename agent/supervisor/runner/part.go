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
	"github.com/volagent/volagent/volmgr/volume"
)

// Part describes the part of a plugin to its runner.
type Part struct {
	ID, Slot   string
	Definition *volume.PluginDefinition
	Paths      part.Paths
	Values     func(variable string) string // of the variables in the plugin's file
	Boot       string                       // identifies this boot of the host
	Logger     hclog.Logger

	Record   Record
	Progress Progress
	Mask     Mask
	Secrets  SecretResolver // nil: the plugin's file may not refer to secrets
}

// Record keeps the identity of the part's process over restarts of the agent.
type Record interface {
	Process() volume.PluginProcess
	// SaveProcess stores which process serves the plugin, and the definition it was started from.
	SaveProcess(ctx context.Context, it volume.PluginProcess) error
	// ForgetProcess records in memory that no process was started.
	ForgetProcess()
}

// Progress shows how a start proceeds, and interrupts it.
type Progress interface {
	// Note changes the reason that the status shows.
	Note(reason string)
	// Unhealthy reports that no process serves the plugin's socket.
	Unhealthy(reason string)
	// Wake returns the channel that delivers a value when Due may have changed.
	Wake() <-chan struct{}
	// Due reports whether the start must be given up.
	Due() bool
}

// Mask hides secrets.
type Mask interface {
	Add(secrets call.Secrets)
	Scrub(text string) string
}

// SecretResolver reads the secrets that plugin files refer to.
type SecretResolver interface {
	ResolveSecret(ctx context.Context, ref call.SecretRef) (call.Secret, error)
}

// ErrDue ends a wait because Due returned true.
var ErrDue = errors.New("the plugin's definition changes")

// Wait waits for d, or without limit if d is 0. It returns early with nil when one of two channels
// delivers a value or is closed, with ctx.Err(), or with ErrDue.
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

// HideGiven keeps the secrets that an earlier agent gave a process out of the log that this agent
// shows. It reads them from the environment of the process: the files that they came from may hold
// other values by now.
func (p Part) HideGiven(pid int) {
	for name, v := range p.Definition.Env() {
		if v.Secret != nil {
			p.Mask.Add(call.Secrets{name: call.NewSecret(Environ(pid, name))})
		}
	}
}

// Env returns the variables that the plugin's file sets. The value of a secret goes only into the
// child's environment.
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
			return nil, fmt.Errorf("cannot read the secret for %s: this agent resolves none", name)
		}

		secret, err := p.Secrets.ResolveSecret(ctx, *v.Secret)
		if err != nil {
			return nil, fmt.Errorf("cannot read the secret for %s: %w", name, err)
		}
		if strings.ContainsRune(secret.Reveal(), 0) {
			return nil, fmt.Errorf("cannot use the secret for %s: it holds a zero byte", name)
		}

		p.Mask.Add(call.Secrets{name: secret})
		env = append(env, name+"="+secret.Reveal())
	}

	return env, nil
}
