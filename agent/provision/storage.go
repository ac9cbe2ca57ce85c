package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// storageReader asks plugins about their storage as a whole.
type storageReader struct{ *common }

// reporterFor waits until the plugin is ready, and returns its Reporter. It passes the plugin's
// capabilities to the function can. If can returns false, reporterFor returns an error which says
// that the plugin cannot do the action.
func (s *storageReader) reporterFor(ctx context.Context, pluginID, action string, can func(plugin.Caps) bool) (call.Caller, error) {
	info, err := s.awaitPlugin(ctx, pluginID)
	if err != nil {
		return nil, err
	}
	if !can(info.Caps) {
		if err := s.checkControllerHere(ctx, pluginID, action); err != nil {
			return nil, err
		}
		return nil, volume.Errorf(volume.ErrRefused, "plugin %q cannot %s", pluginID, action).WithRemedy(remedy.Of(remedy.ShowPlugin, pluginID))
	}

	return s.Plugins.Reporter(pluginID)
}

// List calls each for every volume of the plugin, including volumes that are not registered here.
// It stops after limit volumes, when ctx ends, or when each returns an error. A limit of 0 means no
// limit. List reports whether the plugin has more volumes.
func (s *storageReader) List(ctx context.Context, pluginID string, limit int, each func(call.StorageVolume) error) (more bool, err error) {
	p, err := s.reporterFor(ctx, pluginID, "list its volumes", func(c plugin.Caps) bool { return c.List })
	if err != nil {
		return false, err
	}

	told := map[string]bool{}

	err = pages(ctx, pluginID, call.ListVolumes, func(token string) (string, bool, error) {
		got, err := call.Do(ctx, p, call.ListVolumesRequest{MaxEntries: pageSize, Token: token})
		if err != nil {
			return "", true, err
		}

		for _, v := range got.Entries {
			if told[v.ExternalID] {
				continue
			}
			if more = limit > 0 && len(told) == limit; more {
				return "", true, nil
			}

			told[v.ExternalID] = true
			if err := each(v); err != nil {
				return "", true, err
			}
		}

		more = limit > 0 && len(told) == limit && got.Next != ""
		return got.Next, more, nil
	})

	return more, err
}

// Capacity asks the plugin how much more storage it can create.
func (s *storageReader) Capacity(ctx context.Context, pluginID string, q call.CapacityRequest) (call.CapacityResult, error) {
	for _, c := range q.Capabilities {
		if err := volume.CheckCapability(c); err != nil {
			return call.CapacityResult{}, err
		}
	}

	p, err := s.reporterFor(ctx, pluginID, "report its capacity", func(c plugin.Caps) bool { return c.Capacity })
	if err != nil {
		return call.CapacityResult{}, err
	}
	if len(q.Topology) > 0 && !s.Plugins.View(pluginID).Info.Caps.Topology {
		return call.CapacityResult{}, volume.Errorf(volume.ErrRefused, "plugin %q does not support topology", pluginID)
	}

	out, err := call.Do(ctx, p, q)
	return out, refusal(pluginID, err)
}

// healthWithin limits the duration of a health report. maxUnwell limits the number of volumes in a
// health report.
const (
	healthWithin = 10 * time.Second
	maxUnwell    = 1000
)

// Health asks the plugin for the state of its storage and for the volumes that have problems. It
// skips a call that the plugin does not support. CSI allows secrets in both calls. The agent sends
// none, because its secrets belong to single volumes.
func (s *storageReader) Health(ctx context.Context, pluginID string) (volume.PluginHealth, error) {
	var out volume.PluginHealth
	info, err := s.awaitPlugin(ctx, pluginID)
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

// pageSize and maxPages limit a listing. A listing fails if the plugin returns more pages, because
// it may never end.
const (
	pageSize = 100
	maxPages = 10000
)

// endlessList returns the error for a listing that never ends.
func endlessList(pluginID string, step call.Method, why string) error {
	return volume.Errorf(nil, "plugin %q returns an endless list for %s: %s", pluginID, step, why).WithRemedy(remedy.Of(remedy.ShowPluginLog, pluginID))
}

// pages calls the function page with the token of each page. It stops after the last page, or when
// page reports done. If the plugin rejects a token that it issued, pages starts once more from the
// first page, so page sees some entries twice. See the sections "ListVolumes Errors" and
// "ListSnapshots Errors" of the CSI spec.
func pages(ctx context.Context, pluginID string, step call.Method, page func(token string) (next string, done bool, err error)) error {
	token, again := "", false
	seen := map[string]bool{}
	for range maxPages {
		next, done, err := page(token)
		var ce *volume.CallError
		switch {
		case errors.As(err, &ce) && ce.Code == volume.CodeAborted && token != "" && !again:
			token, again = "", true
			clear(seen)
			continue
		case err != nil || done || next == "":
			return err
		case seen[next]:
			return endlessList(pluginID, step, fmt.Sprintf("it returned token %.40q twice", next))
		case ctx.Err() != nil:
			return ctx.Err()
		}

		seen[next] = true
		token = next
	}

	return endlessList(pluginID, step, fmt.Sprintf("it returned %d pages", maxPages))
}
