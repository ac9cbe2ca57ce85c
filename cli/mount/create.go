package mount

import (
	"cmp"
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// provide creates the volume if it does not exist and the options name a class. An existing volume
// stays as it is, also if it has another class. The class file then no longer matters, so a mistake in it does
// not prevent a mount at boot.
func (m *mounting) provide(ctx context.Context, client *apiclient.Client, out *output.Printer, deadline time.Time) error {
	if m.class == "" {
		return nil
	}
	_, err := client.Volume(ctx, m.Volume)
	if !command.IsNotFound(err) {
		return err
	}

	request := api.VolumeSpec{ID: m.Volume, Class: m.class, CapacityMin: m.size}
	// The volume must have the mode in which it is mounted.
	request.Capabilities = []api.Capability{{AccessMode: m.req.AccessMode, AttachmentMode: cmp.Or(m.req.AttachmentMode, fileSystem)}}

	end := out.During(ctx, "creating the volume", command.VolumeProgress(client, m.Volume, ""))
	made, err := client.CreateVolumeWithin(ctx, request, max(time.Until(deadline), time.Millisecond))
	end()
	if err != nil {
		hinted := command.ExplainClass(ctx, client, err, m.class)
		return command.Failed(hinted, "create it with class %q", m.class)
	}

	if made.Outcome == api.OutcomeCreated {
		out.Note("created volume %q with class %q (%s)", m.Volume, m.class, suggest.Command("volctl volume status %s", m.Volume))
	}
	return nil
}
