package supervisor

import (
	"context"
	"fmt"
	"slices"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// checker checks the identity of a plugin, and the namespaces in which the plugin runs.
type checker struct {
	*supervised
	misnamed string   // the warning about the driver's name; empty if there is none
	warned   []string // all warnings that were reported so far
}

// named returns an error if CSI does not allow the name of the driver. If the agent already has
// volumes of the plugin, named only warns, because an error would make these volumes unusable.
func (c *checker) named(driver string) error {
	err := volume.CheckDriver(driver)
	switch {
	case err == nil:
		c.misnamed = ""
		return nil
	case c.opts.HasVolumes == nil || !c.opts.HasVolumes(c.id):
		return fmt.Errorf("%w: %w", runner.ErrRefused, err)
	}

	c.misnamed = err.Error() + "; the agent uses it anyway, because volumes of it exist"
	return nil
}

// introduce checks the identity that the plugin reports about itself, and stores it.
func (c *checker) introduce(ctx context.Context, def *plugin.Definition, info plugin.Info) error {
	info.ID = c.id
	wantNode := def.Type == part.Node || def.Type == part.Monolith
	wantController := def.Type == part.Controller || def.Type == part.Monolith
	switch {
	case wantNode && !info.HasNode:
		return fmt.Errorf("%w: its file says type %s, and it has no node service", runner.ErrRefused, def.Type)
	case wantController && !info.HasController:
		return fmt.Errorf("%w: its file says type %s, and it has no controller service", runner.ErrRefused, def.Type)
	}

	if err := c.named(info.Driver); err != nil {
		return err
	}

	switch was, part := c.siblings.bind(c.supervised, info.Driver); {
	case part != "":
		return fmt.Errorf("%w: driver %q answers, and the part %q of plugin %q is driver %q: all parts must have the same driver",
			runner.ErrRefused, info.Driver, part, c.id, was)
	case was != "":
		return fmt.Errorf("%w: driver %q answers, and plugin %q has been driver %q: its volumes would go to the wrong driver; give another driver an id of its own",
			runner.ErrRefused, info.Driver, c.id, was)
	}

	c.tellNodeID(info)
	err := c.record.save(ctx, func(r *plugin.Record) { r.Info, r.Definition = info, def })
	if err != nil {
		// Continue, because the plugin can serve without this record. The only loss is the
		// description of the plugin while it is down.
		c.logger.Warn("cannot store the identity that the plugin reports", "error", err)
	}

	return nil
}

// askLimits makes the node part of a plugin report the limits and the topology of this host again.
// It is called when the controller has reported that this host has no room for another volume.
func askLimits(parts []*supervised) {
	for _, p := range parts {
		has := p.record.get().Info.HasNode
		p.mu.Lock()
		p.limits = has
		p.mu.Unlock()
		p.poke()
	}
}

// askNode calls NodeGetInfo of a running plugin again, because the limits and the topology may have
// changed. The node id must stay the same, because the existing volumes were connected under this
// id.
func (c *checker) askNode(ctx context.Context, def *plugin.Definition, client *csiclient.Client) {
	asking, cancel := context.WithTimeout(ctx, def.ProbeTimeout)
	defer cancel()

	info, err := client.NodeInfo(asking)
	if err != nil {
		c.logger.Warn("cannot query the plugin for this host's limits; the earlier limits stay in force", "error", err)
		return
	}

	had := c.record.get().Info
	c.tellNodeID(info)
	err = c.record.save(ctx, func(r *plugin.Record) { r.Info.Topology, r.Info.MaxVolumes = info.Topology, info.MaxVolumes })
	if err != nil {
		c.logger.Warn("cannot store the limits that the plugin reports for this host", "error", err)
	}

	if had.MaxVolumes != info.MaxVolumes {
		c.logger.Info("the plugin reports another volume limit for this host", "was", had.MaxVolumes, "now", info.MaxVolumes)
	}
}

// tellNodeID warns if a plugin reports a different node id while volumes are in use through the
// plugin. These volumes stay connected under the old id, which is in their records. The agent later
// disconnects them under the old id.
func (c *checker) tellNodeID(info plugin.Info) {
	had := c.record.get().Info.NodeID
	if had == "" || had == info.NodeID {
		return
	}
	if ids := c.needed(); len(ids) > 0 {
		c.logger.Warn("the plugin reports another node id for this host; volumes in use keep the id under which they are attached",
			"was", had, "now", info.NodeID, "volumes", ids)
	}
}

// warn stores the warnings about the running instance. It reports each warning only once.
func (c *checker) warn(warnings []string) {
	if c.misnamed != "" {
		warnings = append([]string{c.misnamed}, warnings...)
	}

	c.mu.Lock()
	fresh := slices.DeleteFunc(slices.Clone(warnings), func(s string) bool { return slices.Contains(c.warned, s) })
	c.actual.Warnings, c.warned = warnings, append(c.warned, fresh...)
	c.mu.Unlock()
	if len(fresh) == 0 || c.opts.OnWarning == nil {
		return
	}

	name := ""
	if len(c.siblings.of(c.id)) > 1 {
		g := c.look()
		name = g.Name()
	}

	for _, s := range fresh {
		c.opts.OnWarning(c.id, name, s)
	}
}
