package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/volagent/volagent/agent/fencehook"
	"github.com/volagent/volagent/volmgr/shared"
)

// fenceHooks asks the fence hooks of this host for packages of the cluster.
type fenceHooks struct {
	*Agent
	all *fencehook.Hooks
}

// hooks returns the fence hooks of this host.
func (a *Agent) hooks() fenceHooks {
	return fenceHooks{Agent: a, all: fencehook.New(a.c.FenceDir, a.seams.FenceLimits)}
}

// Names returns the names of the hooks that can be called. It logs why others are not called.
func (h fenceHooks) Names() (names []string) {
	hooks, err := h.all.Find()
	if err != nil {
		h.log.Error("cannot use the fence hooks of this host", "directory", h.c.FenceDir, "error", err)
	}
	for _, hook := range hooks {
		if hook.Refused != nil {
			h.log.Error("a fence hook is not called", "hook", hook.Name, "error", hook.Refused)
		}
	}
	return namesOf(hooks)
}

// usable returns the names of the hooks that can be called, for the other hosts. They are read often, so a
// problem is logged only when a hook is needed.
func (h fenceHooks) usable() []string {
	hooks, err := h.all.Find()
	if err != nil {
		return nil
	}
	return namesOf(hooks)
}

// namesOf returns the names of the hooks that are not refused.
func namesOf(hooks []fencehook.Hook) (names []string) {
	for _, hook := range hooks {
		if hook.Refused == nil {
			names = append(names, hook.Name)
		}
	}
	return names
}

// Off switches a host off.
func (h fenceHooks) Off(ctx context.Context, host string, m shared.Machine) (hook string, err error) {
	r := h.all.Off(ctx, h.target(host, m, "the host is gone, and other hosts wait for its volumes"))
	if r.Started {
		h.log.Warn("a fence hook was asked to switch a host off", "host", host, "result", r.Reason, "output", r.Output())
	}
	if !r.Proven {
		return "", errors.New(r.Reason)
	}
	return r.Hook, nil
}

// On gives a host its access to the storage back.
func (h fenceHooks) On(ctx context.Context, host string, m shared.Machine) (hooks []string, err error) {
	r := h.all.On(ctx, h.target(host, m, "a person has ended the fencing"))
	if r.Started {
		h.log.Warn("a fence hook was asked to switch a host on", "host", host, "result", r.Reason, "output", r.Output())
	}
	if !r.Done && r.Started {
		return nil, errors.New(r.Reason)
	}
	for _, c := range r.Calls {
		hooks = append(hooks, c.Hook)
	}
	return hooks, nil
}

// Status returns the answer of each hook about a host.
func (h fenceHooks) Status(ctx context.Context, host string, m shared.Machine) (answers []string, err error) {
	r := h.all.Status(ctx, h.target(host, m, "a person tests the fencing"))
	for _, c := range r.Calls {
		answers = append(answers, fmt.Sprintf("hook %s: %s", c.Hook, c.Said))
	}
	if !r.Done {
		return answers, errors.New(r.Reason)
	}
	return append(answers, r.Reason), nil
}

func (fenceHooks) target(host string, m shared.Machine, reason string) fencehook.Target {
	return fencehook.Target{Host: host, MachineID: m.ID, DMIUUID: m.DMI, Reason: reason}
}
