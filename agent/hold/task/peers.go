package task

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// peersFor is the time for which this host follows its peers after a decision has depended on them.
const peersFor = 2 * time.Minute

// peers contains the descriptions of the other hosts, by the name of the host. It is nil until
// it has been read.
type peers map[string]peer

// peer is another host. A registered host that has not described its plugins yet has an info without
// a version.
type peer struct {
	info shared.NodeInfo
	live bool
}

// silent returns the first host, other than node, that has not said yet whether it runs a controller of
// a plugin. It returns an empty text if all hosts have said that.
func (p peers) silent(node, pluginID string) string {
	for _, host := range slices.Sorted(maps.Keys(p)) {
		plugin, ok := p[host].info.Plugins[pluginID]
		unknown := p[host].info.Version == "" || ok && plugin.Driver == ""
		if host != node && unknown {
			return host
		}
	}
	return ""
}

// silentWords says that a host has not described a plugin.
func silentWords(host, pluginID, driver string) string {
	return fmt.Sprintf("host %q has not said yet whether it runs a controller of driver %s (plugin %q)", host, driver, pluginID)
}

// executors returns the hosts, other than node, that can make the controller calls of a plugin. The
// result exists reports whether the plugin has a controller on any host, even if the host is gone.
func (p peers) executors(node, pluginID, driver string) (hosts []string, exists bool) {
	for _, host := range p.controllers(pluginID, driver) {
		if host == node {
			continue
		}
		exists = true
		if p[host].live {
			hosts = append(hosts, host)
		}
	}
	return hosts, exists
}

// controllers returns the hosts that have a controller of a plugin, even if they are gone.
func (p peers) controllers(pluginID, driver string) (hosts []string) {
	for host, one := range p {
		if plugin := one.info.Plugins[pluginID]; plugin.Controller && plugin.Driver == driver {
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	return hosts
}

// noLiveController says that every host with a controller of a plugin is gone.
func (p peers) noLiveController(pluginID, driver string) string {
	return fmt.Sprintf("no live host runs a controller of driver %s; start the agent of a host that has one (%s), or run the controller of plugin %q on a live host",
		driver, strings.Join(p.controllers(pluginID, driver), ", "), pluginID)
}

// borrow returns the view of a plugin that has no controller on this host, as decisions about a
// shared volume need it. Its controller is that of the other hosts. If all hosts have said that they
// have no controller, the driver has none, and the view stays as it is.
func (p peers) borrow(node string, v volume.Volume, view plugin.View) plugin.View {
	driver := view.Info.Driver
	if driver == "" {
		driver = v.Driver
	}

	hosts, exists := p.executors(node, v.PluginID, driver)
	silent := p.silent(node, v.PluginID)
	if !exists && p != nil && silent == "" {
		return view
	}

	local := plugin.Service{Ready: view.Ready, Final: view.Final}
	if view.Apart != nil {
		local = view.Apart.Node
	} else if !view.Ready {
		local.Lack = fmt.Sprintf("plugin %q is %s", v.PluginID, view.State)
	}

	remote := plugin.Service{Ready: len(hosts) > 0, Unasked: len(hosts) == 0}
	if p == nil {
		remote.Lack = "the plugins of the other hosts are not known yet"
	} else if !exists {
		remote.Lack = silentWords(silent, v.PluginID, driver)
	} else if len(hosts) == 0 {
		remote.Lack = p.noLiveController(v.PluginID, driver)
	} else {
		one := p[hosts[0]].info.Plugins[v.PluginID]
		view.Info.Caps, view.Info.HasController = one.Caps.WithNode(view.Info.Caps), true
		view.ControllerTimeout = one.ControllerTimeout
	}

	view.Apart = &plugin.Apart{Node: local, Controller: remote}
	return view
}

// Borrow returns the view of a plugin for a decision about a shared volume. If this host has no
// controller of the plugin, the view contains the controllers of the other hosts.
func (s *Service) Borrow(v volume.Volume, view plugin.View) plugin.View {
	if !view.LacksController() {
		return view
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.want()
	return s.peers.borrow(s.Node, v, view)
}

// executors returns the hosts that can make the controller calls for a volume.
func (s *Service) executors(v volume.Volume) []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.want()
	hosts, _ := s.peers.executors(s.Node, v.PluginID, v.Driver)
	return hosts
}

// timeout returns the deadline of the controller calls for a volume on another host.
func (s *Service) timeout(host string, v volume.Volume) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()

	return deadline(s.peers[host].info.Plugins[v.PluginID].ControllerTimeout)
}

// want notes that a decision depends on the peers. The caller holds mu.
func (s *Service) want() {
	s.wanted = time.Now()
	select {
	case s.ask <- struct{}{}:
	default: // refresh has not seen the last request yet
	}
}

// stillWanted reports whether a decision has depended on the peers recently.
func (s *Service) stillWanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return time.Since(s.wanted) < peersFor
}

// refresh keeps the peers up to date while decisions depend on them, until ctx ends.
func (s *Service) refresh(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-s.ask:
		}

		for s.stillWanted() && ctx.Err() == nil {
			if err := s.followPeers(ctx); err != nil {
				backoff.Pause(ctx, s.Every) // the known peers stay; a task for a host that is gone ends by itself
			}
		}
	}
}

// followPeers reads the peers, and reads them again after each change, until no decision depends on
// them.
func (s *Service) followPeers(ctx context.Context) error {
	spans := []shared.Span{shared.Nodes(), shared.NodeInfos(), shared.Lives()}
	page, err := s.Store.Range(ctx, spans[0], 1, 0) // its revision is not later than those of the reads below
	if err != nil {
		return err
	}
	if err := s.updatePeers(ctx); err != nil {
		return err
	}

	ctx, stop := context.WithTimeout(ctx, peersFor)
	defer stop()
	for evs := range s.Store.Watch(ctx, spans, page.Revision+1) {
		if evs.Err != nil {
			return evs.Err
		}
		if len(evs.Changes) == 0 {
			continue
		}
		if err := s.updatePeers(ctx); err != nil {
			return err
		}
	}
	return nil
}

// refreshPeers reads the peers, unless they were read a moment ago. A host that takes over many volumes at once reads
// them once.
func (s *Service) refreshPeers(ctx context.Context) error {
	s.mu.Lock()
	fresh := time.Since(s.peersAt) < s.Every
	s.mu.Unlock()
	if fresh {
		return nil
	}
	return s.updatePeers(ctx)
}

// updatePeers reads the peers, and tells a change.
func (s *Service) updatePeers(ctx context.Context) error {
	begun := time.Now()
	now, err := s.readPeers(ctx)
	if err != nil {
		return err
	}

	s.mu.Lock()
	changed := !reflect.DeepEqual(s.peers, now)
	s.peers, s.peersAt = now, begun
	s.mu.Unlock()
	if changed && s.PeersChanged != nil {
		s.PeersChanged()
	}
	return nil
}

// readPeers reads the plugins of all hosts.
func (s *Service) readPeers(ctx context.Context) (peers, error) {
	live := map[string]bool{}
	if err := shared.Each(ctx, s.Store, shared.Lives(), func(kv shared.KV) error {
		node, ok := shared.LastID(kv.Key)
		live[node] = ok
		return nil
	}); err != nil {
		return nil, err
	}

	all := peers{}
	if err := shared.Each(ctx, s.Store, shared.Nodes(), func(kv shared.KV) error {
		if node, ok := shared.LastID(kv.Key); ok {
			all[node] = peer{live: live[node]}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	err := shared.Each(ctx, s.Store, shared.NodeInfos(), func(kv shared.KV) error {
		e, err := shared.Decode[shared.NodeInfo](kv)
		node, _ := shared.LastID(kv.Key)
		if one, ok := all[node]; ok {
			one.info = e.Value
			all[node] = one
		}
		return err
	})
	return all, err
}
