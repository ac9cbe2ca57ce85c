package service

import (
	"context"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// Claimer makes and detaches claims.
type Claimer interface {
	Claim(ctx context.Context, id string, ask volume.Request, wait time.Duration) (volume.Record, volume.Claim, error)
	Detach(ctx context.Context, id, alloc string, force bool, wait time.Duration) error
	DetachWithout(ctx context.Context, id, alloc string, force bool, how volume.Without, wait time.Duration) (left []string, err error)
}

// Claims answers requests about claims.
type Claims struct {
	view
	do Claimer
}

// Claim makes a claim, and waits until the volume is mounted, for at most the duration wait. If
// wait is 0, it does not wait.
func (c Claims) Claim(ctx context.Context, by Caller, id, alloc string, req api.ClaimRequest, wait time.Duration) (api.Claim, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Claim{}, err
	}

	ask, err := fromClaimRequest(req, by.Peer)
	if err != nil {
		return api.Claim{}, asAPI(err)
	}

	ask.Alloc = alloc
	rec, made, err := c.do.Claim(ctx, id, ask, wait)
	if err != nil {
		return api.Claim{}, c.explainVolume(by, err, id)
	}
	return c.toClaim(rec, made), nil
}

// Detach ends a claim, and waits until the volume is unmounted, for at most the duration wait. If
// withoutPlugin is not empty, the agent makes no calls to the plugin and unmounts in the way that
// withoutPlugin names.
func (c Claims) Detach(ctx context.Context, by Caller, id, alloc string, force bool, withoutPlugin string, wait time.Duration) (api.Done, error) {
	if err := by.CheckWrite(); err != nil {
		return api.Done{}, err
	}

	if withoutPlugin != "" {
		left, err := c.do.DetachWithout(ctx, id, alloc, force, volume.Without(withoutPlugin), wait)
		return api.Done{Left: left}, asAPI(err)
	}
	return api.Done{}, c.explainVolume(by, c.do.Detach(ctx, id, alloc, force, wait), id)
}

// Get returns a claim.
func (c Claims) Get(id, alloc string) (api.Claim, error) {
	rec, err := c.record(id)
	if err != nil {
		return api.Claim{}, err
	}

	found, ok := rec.Claims[alloc]
	if !ok {
		return api.Claim{}, asAPI(volume.Errorf(volume.ErrNotFound, "%q has no claim on volume %q", alloc, id).
			WithRemedy(remedy.Of(remedy.ShowVolume, id)))
	}
	return c.toClaim(rec, found), nil
}

// List returns the claims that match all arguments. An empty argument matches every claim.
func (c Claims) List(volumeID, pluginID, alloc string) []api.Claim {
	fits := func(wanted, v string) bool { return wanted == "" || wanted == v }
	out := []api.Claim{}

	for _, rec := range c.sorted() {
		for _, one := range rec.Ordered() {
			if fits(volumeID, rec.Volume.ID) && fits(pluginID, rec.Volume.PluginID) && fits(alloc, one.Alloc) {
				out = append(out, c.toClaim(rec, one))
			}
		}
	}

	return out
}

// toClaim describes a claim and the state of its plugin. It does not check the mounts of the
// volume.
func (c Claims) toClaim(rec volume.Record, one volume.Claim) api.Claim {
	return toClaim(rec, one, c.plugins.View(rec.Volume.PluginID), c.owners)
}
