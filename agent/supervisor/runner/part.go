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

// Part describes a plugin's part to the part's runner.
type Part struct {
	ID, Slot   string
	Definition *plugin.Definition
	Paths      part.Paths
	Values     func(variable string) string // looks up a variable of the plugin's file
	Boot       string                       // id of the current boot of the host
	Logger     hclog.Logger

	Record   Record
	Progress Progress
	Mask     Mask
	Secrets  SecretResolver // if nil, the plugin's file may not refer to secrets
}

// Record stores the identity of the part's process, so that the next agent finds the process.
type Record interface {
	Process() plugin.Process
	// SaveProcess stores which process serves the plugin, and the definition from which it was
	// started.
	SaveProcess(ctx context.Context, it plugin.Process) error
	// ForgetProcess removes the process from the record in memory, because none was started.
	ForgetProcess()
}

// Progress reports the progress of a start, and can interrupt the start.
type Progress interface {
	// Note changes the reason that the plugin's status shows.
	Note(reason string)
	// Unhealthy reports that no process serves the plugin's socket.
	Unhealthy(reason string)
	// Wake returns a channel that delivers a value when the result of Due may have changed.
	Wake() <-chan struct{}
	// Due reports whether the start must be interrupted.
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

// ErrDue means that a wait ended because Due returned true.
var ErrDue = errors.New("the plugin's definition changes")

// Wait waits for d, or without limit if d is 0. It returns nil early when first or second delivers
// a value or is closed. It returns ctx.Err() when ctx ends, and ErrDue when Due returns true.
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

// HideGiven makes the mask hide the secrets that an earlier agent gave to a process. It reads them
// from the environment of the process, because the files with the secrets may have changed since.
func (p Part) HideGiven(pid int) {
	for name, v := range p.Definition.Env() {
		if v.Secret != nil {
			p.Mask.Add(call.Secrets{name: call.NewSecret(Environ(pid, name))})
		}
	}
}

// Env returns the variables that the plugin's file sets. The values of secrets appear only in the
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
