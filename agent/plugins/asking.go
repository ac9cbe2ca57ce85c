package plugins

import (
	"context"

	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
)

// Storage returns the calls that provision makes to a plugin's controller.
func (p Set) Storage(id string) (provision.Storage, error) {
	return &asking{provisioner: provisioner{p, id}}, nil
}

// Reporter returns the calls with which provision asks a plugin for reports.
func (p Set) Reporter(id string) (provision.Reporter, error) {
	return &asking{provisioner: provisioner{p, id}}, nil
}

// asking makes the calls of one request. It sends all calls for a controller to the same one,
// because the pages of a listing belong together.
type asking struct {
	provisioner
	one *supervisor.Controller
}

// controller returns that controller. The calls through it change nothing, so they can have no late
// effect.
func (p *asking) controller() (supervisor.Controller, error) {
	if p.one == nil {
		c, err := p.plugins.Controller(p.id, "")
		if err != nil {
			return c, err
		}
		p.one = &c
	}

	return *p.one, nil
}

// ControllerModify asks a controller to change a volume.
func (p *asking) ControllerModify(ctx context.Context, r call.ModifyRequest) error {
	c, err := p.plugins.Controller(p.id, r.ExternalID)
	if err != nil {
		return err
	}

	err = c.ControllerModify(ctx, r)
	c.Done(err)
	return err
}

// ControllerGetVolume asks a controller about a volume.
func (p *asking) ControllerGetVolume(ctx context.Context, externalID string) (call.StorageVolume, error) {
	c, err := p.controller()
	if err != nil {
		return call.StorageVolume{}, err
	}
	return c.ControllerGetVolume(ctx, externalID)
}

// ListVolumes asks a controller for a page of its volumes.
func (p *asking) ListVolumes(ctx context.Context, r call.ListVolumesRequest) (call.VolumePage, error) {
	c, err := p.controller()
	if err != nil {
		return call.VolumePage{}, err
	}
	return c.ListVolumes(ctx, r)
}

// GetCapacity asks a controller how much it can create.
func (p *asking) GetCapacity(ctx context.Context, r call.CapacityRequest) (call.CapacityResult, error) {
	c, err := p.controller()
	if err != nil {
		return call.CapacityResult{}, err
	}
	return c.GetCapacity(ctx, r)
}

// NodeStats asks the node part how full a volume is.
func (p *asking) NodeStats(ctx context.Context, r call.StatsRequest) (call.Stats, error) {
	c, err := p.plugins.Client(p.id)
	if err != nil {
		return call.Stats{}, err
	}
	return c.NodeStats(ctx, r)
}

// NodeHealth asks the node part for problems with a volume.
func (p *asking) NodeHealth(ctx context.Context, r call.HealthRequest) (call.Health, error) {
	c, err := p.plugins.Client(p.id)
	if err != nil {
		return call.Health{}, err
	}
	return c.NodeHealth(ctx, r)
}

// StorageHealth asks the node part for problems with its access to the storage.
func (p *asking) StorageHealth(ctx context.Context, secrets call.Secrets) ([]call.Condition, error) {
	c, err := p.plugins.Client(p.id)
	if err != nil {
		return nil, err
	}
	return c.StorageHealth(ctx, secrets)
}

// ControllerHealth asks a controller for problems with a volume.
func (p *asking) ControllerHealth(ctx context.Context, r call.HealthRequest) (call.Health, error) {
	c, err := p.controller()
	if err != nil {
		return call.Health{}, err
	}
	return c.ControllerHealth(ctx, r)
}

// ListHealth asks a controller for a page of the volumes that are not healthy.
func (p *asking) ListHealth(ctx context.Context, r call.ListHealthRequest) (call.HealthPage, error) {
	c, err := p.controller()
	if err != nil {
		return call.HealthPage{}, err
	}
	return c.ListHealth(ctx, r)
}
