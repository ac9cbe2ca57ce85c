package plugins

import (
	"context"
	"errors"

	"github.com/volagent/volagent/volmgr/call"
)

// Await waits until a plugin can create volumes. If the wait fails, Await returns the plugin's
// state as an error. It returns at once if the plugin cannot become ready by itself. For a plugin
// without a controller, Await returns no error; the call that creates the volume then fails.
func (p Set) Await(ctx context.Context, id string) error {
	for {
		changed := p.Changed(id)
		err := p.asked(id)
		if err == nil {
			return nil
		}
		if p.View(id).FinalFor(call.CreateVolume) {
			return err
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

func (p Set) asked(id string) error {
	v := p.View(id)
	if v.Apart != nil && v.Info.HasController {
		_, err := p.Controller(id, "")
		return err
	}

	_, err := p.Client(id)
	return err
}

// AwaitNode waits until the node part of a plugin answers, so that its node id is known. It returns
// an error if the node part cannot become ready by itself, or if ctx ends. A plugin without a node part
// has no node id, so there is nothing to wait for.
func (p Set) AwaitNode(ctx context.Context, id string) error {
	for {
		changed := p.Changed(id)
		v := p.View(id)
		if !v.Info.HasNode || v.ReadyFor(call.NodePublish) {
			return nil
		}
		if v.FinalFor(call.NodePublish) {
			return errors.New(v.Lacks(id, call.NodePublish))
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
