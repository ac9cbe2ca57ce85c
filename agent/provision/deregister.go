package provision

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Deregister forgets a volume and leaves its data alone. Without force it is
// refused while anything of the volume is on this host. With force it drops
// claims that are on their way out, makes no call and unmounts nothing; what
// stays behind is returned in words, and kept as a debt that is paid if the
// same storage volume is registered again.
func (s *Service) Deregister(ctx context.Context, id string, force bool) (left []string, err error) {
	var gone volume.Record
	err = s.Store.Update(ctx, func(tx Tx) error {
		r, ok := tx.Volume(id)
		if !ok {
			return unknown(id)
		}
		gone, left = r, nil
		if !force {
			if err := unused(r); err != nil {
				return err
			}
			if r.Volume.Provision != volume.Provisioned {
				return volume.Errorf(volume.ErrRefused, "volume %q: %s was begun and has not been seen to end", id, r.Volume.Provision).
					WithHint("volctl volume deregister %s -force", id)
			}
		} else if err := volume.Droppable(r); err != nil {
			return err
		}
		// A call may be in flight: what it makes is left behind too.
		unsure, _ := volume.Loaded(r)
		left = behind(unsure)
		if r.Held() && r.Volume.ExternalID != "" {
			tx.PutDebt(r, time.Now().UTC())
		}
		tx.DeleteVolume(id)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.Queue.Forget(id)
	msg := "deregistered"
	if force {
		msg += " by force"
	}
	if len(left) > 0 {
		msg += "; " + strings.Join(left, "; ")
	}
	s.say(gone, "deregistered", "%s", msg)
	return left, nil
}

// unused refuses while claims exist or anything of the volume is mounted.
func unused(r volume.Record) error {
	id := r.Volume.ID
	var names []string
	releasing := true
	for _, c := range r.Ordered() {
		names = append(names, fmt.Sprintf("%q (%s)", c.Alloc, c.State))
		releasing = releasing && !c.Wanted
	}
	switch {
	case len(names) > 0 && !releasing:
		return volume.Errorf(volume.ErrRefused, "volume %q is claimed by %s", id, strings.Join(names, ", ")).
			WithHint("volctl volume detach %s --all", id)
	case len(names) > 0:
		return volume.Errorf(volume.ErrRefused, "the claim of %s on volume %q is still being released", strings.Join(names, ", "), id).
			WithHint("wait for it: volctl wait --volume %s --for free", id)
	case r.Held():
		return volume.Errorf(volume.ErrRefused, "volume %q is still being taken off this host", id).
			WithHint("volctl volume status %s", id)
	}
	return nil
}

// behind says what stays on this host, and at the plugin, without the record.
func behind(r volume.Record) []string {
	var left []string
	add := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	for _, c := range r.Ordered() {
		if c.Bound != volume.Absent {
			add("%s may still be mounted (bound for %q)", c.At, c.Alloc)
		}
		if c.Published != volume.Absent {
			add("%s may still be mounted (published for %q)", c.Target, c.Alloc)
		}
	}
	if r.Node.Staged != volume.Absent {
		add("%s may still be mounted (staged)", r.Node.StagingPath)
	}
	if r.Node.Attached != volume.Absent {
		add("external_id %q may still be attached to node %q", r.Volume.ExternalID, r.Node.NodeID)
	}
	switch r.Volume.Provision {
	case volume.Provisioning:
		add("plugin %q may have made a volume named %q", r.Volume.PluginID, r.Volume.Name)
	case volume.Deleting:
		add("plugin %q may still have, or may have deleted, external_id %q", r.Volume.PluginID, r.Volume.ExternalID)
	}
	return left
}

// statsWithin bounds a look at how full a volume is.
const statsWithin = 5 * time.Second

// Stats asks the plugin how full a mounted volume is.
func (s *Service) Stats(ctx context.Context, id string) (volume.Stats, error) {
	r, ok := s.Store.Volume(id)
	if !ok {
		return volume.Stats{}, unknown(id)
	}
	if _, err := s.statsRequest(id); err != nil {
		return volume.Stats{}, err
	}
	info, err := s.ready(ctx, r.Volume.PluginID)
	if err != nil {
		return volume.Stats{}, err
	}
	if !info.Caps.Stats {
		return volume.Stats{}, volume.Errorf(volume.ErrRefused, "plugin %q does not tell how full a volume is", r.Volume.PluginID)
	}
	p, err := s.Plugins.Provisioner(r.Volume.PluginID)
	if err != nil {
		return volume.Stats{}, err
	}
	// Anybody may ask; that must not hold up who has more to do with the volume.
	ctx, cancel := context.WithTimeout(ctx, statsWithin)
	defer cancel()
	var st volume.Stats
	err = s.Queue.Exclusive(ctx, id, func() error {
		// Again: it may have been unmounted until the turn came.
		req, err := s.statsRequest(id)
		if err == nil {
			st, err = p.NodeStats(ctx, req)
		}
		return err
	})
	return st, err
}

// statsRequest names a path where the volume is mounted now.
func (s *Service) statsRequest(id string) (volume.StatsRequest, error) {
	r, ok := s.Store.Volume(id)
	if !ok {
		return volume.StatsRequest{}, unknown(id)
	}
	req := volume.StatsRequest{ExternalID: r.Volume.ExternalID}
	if r.Node.Staged == volume.Present {
		req.StagingPath = r.Node.StagingPath
	}
	for _, c := range r.Ordered() {
		if c.Published == volume.Present {
			req.Path = c.Target
			return req, nil
		}
	}
	return req, volume.Errorf(volume.ErrRefused, "volume %q is not mounted, so there is nobody to ask how full it is", id).
		WithHint("volctl volume claim %s", id)
}
