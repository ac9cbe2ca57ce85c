package provision

import (
	"context"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// healthWithin limits the duration of a health report. maxUnwell limits the number of volumes in
// it.
const (
	healthWithin = 10 * time.Second
	maxUnwell    = 1000
)

// Health asks the plugin for the state of its storage and for the volumes that have problems. It
// skips a call that the plugin does not support. CSI defines secrets for both calls. The agent
// sends none, because its secrets belong to single volumes.
func (s *Service) Health(ctx context.Context, pluginID string) (volume.PluginHealth, error) {
	var out volume.PluginHealth
	info, err := s.ready(ctx, pluginID)
	if err != nil {
		return out, err
	}
	if !info.Caps.StorageHealth && !info.Caps.ListHealth {
		return out, volume.Errorf(volume.ErrRefused, "plugin %q cannot report the health of its storage", pluginID).WithRemedy(remedy.Of(remedy.ShowPlugin, pluginID))
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
		out.Storage, err = call.Do(ctx, p, call.StorageHealthRequest{})
		note(call.NodeStorageHealth, err)
	}

	if info.Caps.ListHealth {
		out.Volumes, out.More, err = unwell(ctx, p, pluginID)
		note(call.ListHealth, err)
	}

	return out, outer.Err()
}

// unwell lists the volumes for which the plugin reports a problem.
func unwell(ctx context.Context, p call.Caller, pluginID string) (out []call.Health, more bool, err error) {
	told := map[string]bool{}
	err = pages(ctx, pluginID, call.ListHealth, func(token string) (string, bool, error) {
		got, err := call.Do(ctx, p, call.ListHealthRequest{MaxEntries: pageSize, Token: token})
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
