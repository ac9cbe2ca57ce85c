package plugins

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/volume"
)

// only converts an API request for some parts of a plugin.
func only(w api.Part) supervisor.Only {
	return supervisor.Only{Type: w.Type, Instance: w.Instance}
}

// Tail returns the last lines of a plugin's log.
func (p Set) Tail(id string, lines int) []string {
	tail, err := p.LogTail(id, lines)
	if err != nil {
		return nil // there is no log, or another program keeps it
	}
	return tail
}

// Log sends a plugin's log to write.
func (p Set) Log(ctx context.Context, id string, w api.Part, lines int, follow bool, write func([]byte) error) error {
	return p.FollowLog(ctx, id, lines, follow, write, only(w))
}

// RestartPlugin stops a plugin and starts it again. With a wait, the plugin is ready when
// RestartPlugin returns without an error.
func (p Set) RestartPlugin(ctx context.Context, id string, w api.Part, force bool, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "restart", wait, func() error { return p.Restart(id, force, only(w)) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked, only(w)) })
}

// StopPlugin stops a plugin until StartPlugin or, with brief, until the next agent starts. With a
// wait, no process of the plugin runs when StopPlugin returns without an error.
func (p Set) StopPlugin(ctx context.Context, id string, w api.Part, force, brief bool, wait time.Duration) error {
	stop := p.Stop
	if brief {
		stop = p.Pause
	}
	return p.control(ctx, "stop", wait, func() error { return stop(id, force, only(w)) },
		func(ctx context.Context) error { return p.AwaitStopped(ctx, id, only(w)) })
}

// StartPlugin undoes a stop. With a wait, the plugin is ready when StartPlugin returns without an
// error.
func (p Set) StartPlugin(ctx context.Context, id string, w api.Part, wait time.Duration) error {
	asked := time.Now()
	return p.control(ctx, "start", wait, func() error { return p.Start(id, only(w)) },
		func(ctx context.Context) error { return p.AwaitStarted(ctx, id, asked, only(w)) })
}

// RegisterPlugin registers the text of a plugin file. Errors refer to the text as name. With a
// wait, the plugin is ready when RegisterPlugin returns without an error. The id is returned even
// with an error, if it was known by then.
func (p Set) RegisterPlugin(ctx context.Context, name string, text []byte, wait time.Duration) (id, outcome string, err error) {
	var reg supervisor.Registration
	asked := time.Now()
	err = p.control(ctx, "register", wait, func() (err error) {
		reg, err = p.Register(ctx, name, text)
		return err
	}, func(ctx context.Context) error { return p.AwaitRegistered(ctx, reg, asked) })

	return reg.ID, reg.Outcome, err
}

// DeregisterPlugin deletes the run-time registration of a plugin. With a wait, no registered part
// of it runs when DeregisterPlugin returns without an error.
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
