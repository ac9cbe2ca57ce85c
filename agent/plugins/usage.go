package plugins

import (
	"cmp"
	"context"
	"slices"

	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/secret"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Usage reports which volumes use a plugin, according to the state database. It counts leftover
// records and the volumes of tests, too.
type Usage struct {
	Records records.Store
	Secrets secret.Resolver
}

// of returns the volumes and leftover records of a plugin.
func (u Usage) of(pluginID string) []volume.Record {
	all := records.WithLeftovers{Store: u.Records}.Volumes()
	return slices.DeleteFunc(all, func(r volume.Record) bool { return r.Volume.PluginID != pluginID })
}

// HasVolumes reports whether any volume or leftover record belongs to a plugin.
func (u Usage) HasVolumes(pluginID string) bool { return len(u.of(pluginID)) > 0 }

// InUse returns the volumes that are, or may be, on this host through a plugin.
func (u Usage) InUse(pluginID string) (ids []string) {
	for _, r := range u.of(pluginID) {
		if r.Held() {
			ids = append(ids, r.Volume.ID)
		}
	}

	if left := u.Scratches()[pluginID]; left != nil {
		ids = append(ids, left.Name())
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// FUSEClaims returns the number of claims with a FUSE mount through a plugin.
func (u Usage) FUSEClaims(pluginID string) (n int) {
	for _, r := range u.of(pluginID) {
		n += fuseClaims(r)
	}
	return n
}

func fuseClaims(r volume.Record) (n int) {
	for _, c := range r.Claims {
		if c.FUSE() {
			n++
		}
	}

	return n
}

// KnownSecrets returns the secrets in calls for a plugin's volumes, leftover records and tests. It
// omits secrets that cannot be read now.
func (u Usage) KnownSecrets(pluginID string) (known []call.Secrets) {
	for _, r := range u.of(pluginID) {
		if len(r.Volume.Secrets) > 0 {
			known = append(known, u.Secrets.Known(r.Volume))
		}
	}

	if left := u.Scratches()[pluginID]; left != nil {
		known = append(known, u.Secrets.Known(volume.Volume{Secrets: left.Secrets}))
	}

	return known
}

// Scratches returns the volumes of running and interrupted tests, by plugin.
func (u Usage) Scratches() map[string]*plugin.Scratch {
	all := map[string]*plugin.Scratch{}
	for _, p := range statedb.Plugins.All(u.Records) {
		if p.Scratch != nil {
			all[cmp.Or(p.Plugin, p.ID)] = p.Scratch
		}
	}

	return all
}

// FileSecrets reads the secrets of plugin files.
type FileSecrets struct{}

// ResolveSecret reads the secret that ref names.
func (FileSecrets) ResolveSecret(_ context.Context, ref call.SecretRef) (call.Secret, error) {
	return secret.Resolver{}.One(ref)
}
