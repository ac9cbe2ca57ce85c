package service

import (
	"cmp"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Volume converts a volume file into the domain's volume. If the file lists no capabilities, the
// volume gets one: a file system with a single writer.
func Volume(s api.VolumeSpec) volume.Volume {
	v := volume.Volume{
		ID: s.ID, Name: s.Name, PluginID: s.PluginID, ExternalID: s.ExternalID,
		SnapshotID: s.SnapshotID, CloneID: s.CloneID, CapacityMin: s.CapacityMin, CapacityMax: s.CapacityMax,
		Parameters: s.Parameters, Mutable: s.Mutable, Context: s.Context, Reclaim: cmp.Or(s.Reclaim, api.ReclaimRetain),
		Shared: s.Scope == api.ScopeShared, AnyScope: s.Scope == "", Boot: s.Boot,
		Takeover: volume.Takeover(s.Takeover), Class: s.Class,
	}
	if s.Boot == api.BootWait {
		v.Boot = volume.BootWait
	}
	if s.Takeover == api.TakeoverProven {
		v.Takeover = volume.TakeoverProven
	}

	listed := s.Capabilities
	if len(listed) == 0 {
		listed = []api.Capability{{}}
	}
	for _, c := range listed {
		v.Capabilities = append(v.Capabilities, call.Capability{
			Access:     cmp.Or(call.AccessMode(c.AccessMode), call.SingleNodeWriter),
			Attachment: cmp.Or(call.AttachmentMode(c.AttachmentMode), call.FileSystem),
		})
	}

	if s.MountOptions != nil {
		v.MountOptions = call.MountOptions(*s.MountOptions)
	}
	if s.Topology != nil {
		v.Topology = call.TopologyRequest(*s.Topology)
	}
	for name, ref := range s.Secrets {
		if v.Secrets == nil {
			v.Secrets = map[string]call.SecretRef{}
		}
		v.Secrets[name] = fromSecret(ref)
	}

	return v
}

// fromSecret converts a secret into the domain's type. The agent seals a literal value before it
// stores the value.
func fromSecret(s api.Secret) call.SecretRef {
	ref := call.SecretRef{File: s.File, Credential: s.Credential, Env: s.Env, Keep: s.Sealed}
	if value, ok := s.Literal.Reveal(); ok {
		ref.Literal = call.NewSecret(value)
	}
	return ref
}

// toSecret returns the reference of a secret. For a sealed value, the result shows only that a
// value exists.
func toSecret(ref call.SecretRef) api.Secret {
	return api.Secret{
		File: ref.File, Credential: ref.Credential, Env: ref.Env,
		Sealed: ref.Sealed != "" || ref.Keep || ref.Literal != (call.Secret{}),
	}
}

// toSpec returns a volume file that would register the volume with its present properties.
func toSpec(v volume.Volume) api.VolumeSpec {
	s := api.VolumeSpec{
		ID: v.ID, Name: v.Name, PluginID: v.PluginID, ExternalID: v.ExternalID,
		SnapshotID: v.SnapshotID, CloneID: v.CloneID, CapacityMin: v.CapacityMin, CapacityMax: v.CapacityMax,
		Parameters: v.Parameters, Mutable: v.Mutable, Context: v.Context, Reclaim: v.Reclaim,
		Boot: v.Boot, Takeover: string(v.Takeover),
	}

	if v.Shared {
		s.Scope = api.ScopeShared
	}
	for _, c := range v.Capabilities {
		s.Capabilities = append(s.Capabilities, toCapability(c))
	}

	if v.MountOptions.FSType != "" || len(v.MountOptions.MountFlags) > 0 {
		m := api.MountOptions(v.MountOptions)
		s.MountOptions = &m
	}
	if v.Topology.Given() {
		t := api.TopologyRequest(v.Topology)
		s.Topology = &t
	}
	for name, ref := range v.Secrets {
		if s.Secrets == nil {
			s.Secrets = map[string]api.Secret{}
		}
		s.Secrets[name] = toSecret(ref)
	}

	return s
}

func toCapability(c call.Capability) api.Capability {
	return api.Capability{AccessMode: string(c.Access), AttachmentMode: string(c.Attachment)}
}

// references converts secrets that belong to no registered volume. The agent stores no secrets for
// them, so references rejects sealed and literal values.
func references(all map[string]api.Secret) (map[string]call.SecretRef, error) {
	refs := map[string]call.SecretRef{}
	for name, one := range all {
		if one.File == "" && one.Credential == "" && one.Env == "" {
			return nil, volume.Errorf(volume.ErrInvalid, "secret %q is not a reference: use {file: PATH}, {credential: NAME} or {env: NAME}", name)
		}
		refs[name] = call.SecretRef{File: one.File, Credential: one.Credential, Env: one.Env}
	}

	return refs, nil
}

// readSecrets converts secrets in a request that otherwise only reads. It refuses callers without
// write permission, because the agent reads the files and variables that the secrets name.
func readSecrets(by Caller, all map[string]api.Secret) (map[string]call.SecretRef, error) {
	switch {
	case all == nil:
		return nil, nil
	case !by.MayWrite:
		return nil, &api.Error{Code: api.CodePermission, Message: by.String() + " may not name secrets for the agent to read"}
	}
	refs, err := references(all)
	return refs, asAPI(err)
}
