package plugins

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/volume"
)

// only converts the parts of a plugin that an API request selects.
func only(w api.Part) supervisor.Only {
	return supervisor.Only{Type: w.Type, Instance: w.Instance}
}

// Tail returns the last lines of a plugin's log.
func (p Set) Tail(id string, lines int) []string {
	tail, err := p.LogTail(id, lines)
	if err != nil {
		return nil // the plugin has no log, or another program keeps its log
	}
	return tail
}

// Log passes the log of a plugin to the function write.
func (p Set) Log(ctx context.Context, id string, w api.Part, lines int, follow bool, write func([]byte) error) error {
	return p.FollowLog(ctx, id, lines, follow, write, only(w))
}

// RestartPlugin stops a plugin and starts it again. If wait is positive, RestartPlugin waits until
// the plugin is ready.
func (p Set) RestartPlugin(ctx context.Context, id string, w api.Part, force bool, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "restart", wait, func() error { return p.Restart(id, force, only(w)) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked, only(w)) })
}

// StopPlugin stops a plugin until StartPlugin is called. If brief is set, the next agent process
// also starts the plugin again. If wait is positive, StopPlugin waits until no process of the
// plugin runs.
func (p Set) StopPlugin(ctx context.Context, id string, w api.Part, force, brief bool, wait time.Duration) error {
	stop := p.Stop
	if brief {
		stop = p.Pause
	}
	return p.control(ctx, "stop", wait, func() error { return stop(id, force, only(w)) },
		func(ctx context.Context) error { return p.AwaitStopped(ctx, id, only(w)) })
}

// StartPlugin undoes StopPlugin. If wait is positive, StartPlugin waits until the plugin is ready.
func (p Set) StartPlugin(ctx context.Context, id string, w api.Part, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "start", wait, func() error { return p.Start(id, only(w)) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked, only(w)) })
}

// RegisterPlugin registers a plugin from the text of a plugin file. In error messages, the text is
// called name. If wait is positive, RegisterPlugin waits until the plugin is ready. It also returns
// the id together with an error, unless the error came before the id was known.
func (p Set) RegisterPlugin(ctx context.Context, name string, text []byte, wait time.Duration) (id, outcome string, err error) {
	var reg supervisor.Registration
	asked := time.Now()
	err = p.control(ctx, "register", wait, func() (err error) {
		reg, err = p.Register(ctx, name, text)
		return err
	}, func(ctx context.Context) error { return p.AwaitRegistered(ctx, reg, asked) })

	return reg.ID, reg.Outcome, err
}

// DeregisterPlugin deletes the run-time registration of a plugin. If wait is positive,
// DeregisterPlugin waits until none of the registered parts runs.
func (p Set) DeregisterPlugin(ctx context.Context, id string, force bool, wait time.Duration) error {
	var gone func(context.Context) error
	return p.control(ctx, "deregister", wait, func() (err error) {
		gone, err = p.Deregister(ctx, id, force)
		return err
	}, func(ctx context.Context) error { return gone(ctx) })
}

func (p Set) control(ctx context.Context, verb string, wait time.Duration, ask func() error, await func(context.Context) error) error {
	if p.Halt != "" {
		return volume.Errorf(volume.ErrRefused, "cannot %s a plugin: %s", verb, p.Halt)
	}
	if err := ask(); err != nil || wait <= 0 {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()

	return await(ctx)
}
