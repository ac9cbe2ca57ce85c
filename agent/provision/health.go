package provision

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// These limits bound the time and size of a health report.
const (
	healthWithin = 10 * time.Second
	maxUnwell    = 1000
)

// Health asks a plugin how well it reaches its storage, and which volumes are not healthy, as far
// as it can report that. CSI defines secrets for both calls. The agent sends none, because it knows
// secrets only for single volumes.
func (s *Service) Health(ctx context.Context, pluginID string) (volume.PluginHealth, error) {
	var out volume.PluginHealth
	info, err := s.ready(ctx, pluginID)
	if err != nil {
		return out, err
	}
	if !info.Caps.StorageHealth && !info.Caps.ListHealth {
		return out, volume.Errorf(volume.ErrRefused, "plugin %q cannot tell how its storage is", pluginID).WithRemedy(remedy.Of(remedy.ShowPlugin, pluginID))
	}

	p, err := s.Plugins.Reporter(pluginID)
	if err != nil {
		return out, err
	}

	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()

	note := func(k call.Method, err error) {
		if err != nil {
			out.Silent = append(out.Silent, silence(k, err))
			return
		}
		out.Asked = append(out.Asked, k)
	}
	if info.Caps.StorageHealth {
		out.Storage, err = p.StorageHealth(ctx, nil)
		note(call.NodeStorageHealth, err)
	}

	if info.Caps.ListHealth {
		out.Volumes, out.More, err = unwell(ctx, p, pluginID)
		note(call.ListHealth, err)
	}

	return out, outer.Err()
}

// unwell lists the volumes that are not healthy.
func unwell(ctx context.Context, p Reporter, pluginID string) (out []call.Health, more bool, err error) {
	told := map[string]bool{}
	err = pages(ctx, pluginID, call.ListHealth, func(token string) (string, bool, error) {
		got, err := p.ListHealth(ctx, call.ListHealthRequest{MaxEntries: pageSize, Token: token})
		for _, h := range got.Entries {
			if told[h.ExternalID] || len(h.Entries) == 0 {
				continue
			}
			if len(out) == maxUnwell {
				more = true
				return "", true, nil
			}

			told[h.ExternalID] = true
			h.Entries = h.Entries[:min(len(h.Entries), maxFound)]
			out = append(out, h)
		}

		return got.Next, false, err
	})

	return out, more, err
}
