package plugins

import (
	"context"

	"github.com/volagent/volagent/volmgr/call"
)

// Await waits until a plugin can create volumes. If that does not happen, it returns the plugin's
// state as an error, at once for a plugin that cannot become ready by itself. Await also waits for
// a plugin without a controller; the create call itself then reports that.
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
