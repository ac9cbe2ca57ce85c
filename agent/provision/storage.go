package provision

import (
	"context"
	"errors"
	"fmt"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// pageSize and maxPages limit a listing. The agent gives up on a plugin that returns more pages,
// because its list may never end.
const (
	pageSize = 100
	maxPages = 10000
)

// endless returns the error for a listing that never ends.
func endless(pluginID string, step call.Method, why string) error {
	return volume.Errorf(nil, "plugin %q returns an endless list for %s: %s", pluginID, step, why).WithRemedy(remedy.Of(remedy.ShowPluginLog, pluginID))
}

// pages calls page for each page until the last one, or until page reports done. If the plugin
// rejects a token that it issued, pages starts again from the first page, once. See the sections
// "ListVolumes Errors" and "ListSnapshots Errors" of the CSI spec. After the restart, page sees the
// same entries a second time.
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
			return endless(pluginID, step, fmt.Sprintf("it returned token %.40q twice", next))
		case ctx.Err() != nil:
			return ctx.Err()
		}

		seen[next] = true
		token = next
	}

	return endless(pluginID, step, fmt.Sprintf("it returned %d pages", maxPages))
}

// List calls each for every volume of the plugin, including volumes that are not registered here.
// It stops after limit volumes (0: no limit), when ctx ends, and at the first error of each. It
// reports whether the plugin has more volumes.
func (s *Service) List(ctx context.Context, pluginID string, limit int, each func(call.StorageVolume) error) (more bool, err error) {
	p, err := s.storage(ctx, pluginID, "list its volumes", func(c plugin.Caps) bool { return c.List })
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
func (s *Service) Capacity(ctx context.Context, pluginID string, q call.CapacityRequest) (call.CapacityResult, error) {
	for _, c := range q.Capabilities {
		if err := volume.CheckCapability(c); err != nil {
			return call.CapacityResult{}, err
		}
	}

	p, err := s.storage(ctx, pluginID, "report its capacity", func(c plugin.Caps) bool { return c.Capacity })
	if err != nil {
		return call.CapacityResult{}, err
	}
	if len(q.Topology) > 0 && !s.Plugins.View(pluginID).Info.Caps.Topology {
		return call.CapacityResult{}, volume.Errorf(volume.ErrRefused, "plugin %q does not support topology", pluginID)
	}

	out, err := call.Do(ctx, p, q)
	return out, refusal(pluginID, err)
}

// storage waits until the plugin is ready and checks with can that the plugin has a capability. If
// the capability is missing, the error names it with the given text.
func (s *Service) storage(ctx context.Context, pluginID, what string, can func(plugin.Caps) bool) (call.Caller, error) {
	info, err := s.ready(ctx, pluginID)
	if err != nil {
		return nil, err
	}
	if !can(info.Caps) {
		return nil, volume.Errorf(volume.ErrRefused, "plugin %q cannot %s", pluginID, what).WithRemedy(remedy.Of(remedy.ShowPlugin, pluginID))
	}

	return s.Plugins.Reporter(pluginID)
}
