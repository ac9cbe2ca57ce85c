package statedb

import (
	"encoding/json"

	"github.com/volagent/volagent/volmgr/volume"
)

// decodeRecord and decodeClaim read what is stored thousands of times, and what
// a start waits for. They know the form in which save writes the fields that
// most values have; a value that holds anything else is read by encoding/json,
// which also has the say about what makes no sense.
func decodeRecord(raw []byte, in interned, r *volume.Record) error {
	p := parser{raw: raw, in: in}
	if p.record(r); p.done() {
		return nil
	}
	*r = volume.Record{}
	if err := json.Unmarshal(raw, r); err != nil {
		return err
	}
	in.record(r)
	return nil
}

func decodeClaim(raw []byte, in interned, c *volume.Claim) error {
	p := parser{raw: raw, in: in}
	if p.claim(c); p.done() {
		return nil
	}
	*c = volume.Claim{}
	if err := json.Unmarshal(raw, c); err != nil {
		return err
	}
	in.claim(c)
	return nil
}

func (p *parser) record(r *volume.Record) {
	p.object(func(name string) {
		switch name {
		case "volume":
			p.volume(&r.Volume)
		case "generation":
			r.Generation = p.number()
		case "node":
			p.node(&r.Node)
		default:
			p.strange = true
		}
	})
}

func (p *parser) volume(v *volume.Volume) {
	p.object(func(name string) {
		switch name {
		case "id":
			v.ID = p.own()
		case "name":
			v.Name = p.own()
		case "plugin_id":
			v.PluginID = p.shared()
		case "driver":
			v.Driver = p.shared()
		case "external_id":
			v.ExternalID = p.own()
		case "capacity_min":
			v.CapacityMin = int64(p.number())
		case "capacity_max":
			v.CapacityMax = int64(p.number())
		case "capacity":
			v.Capacity = int64(p.number())
		case "capabilities":
			v.Capabilities = list(p, p.capability)
		case "parameters":
			v.Parameters = p.words()
		case "context":
			v.Context = p.words()
		case "reclaim":
			v.Reclaim = p.shared()
		case "created":
			v.Created = p.truth()
		case "registered_at":
			p.time(&v.RegisteredAt)
		default:
			p.strange = true
		}
	})
}

func (p *parser) node(n *volume.NodeSide) {
	p.object(func(name string) {
		switch name {
		case "mode":
			n.Mode = &volume.Mode{}
			p.object(func(name string) {
				if !p.access(name, &n.Mode.Capability) {
					p.strange = true
				}
			})
		case "uses":
			p.object(func(name string) {
				switch name {
				case "attach":
					n.Uses.Attach = p.truth()
				case "stage":
					n.Uses.Stage = p.truth()
				default:
					p.strange = true
				}
			})
		case "attached":
			n.Attached = volume.Side(p.shared())
		case "node_id":
			n.NodeID = p.shared()
		case "publish_context":
			n.PublishContext = p.words()
		case "attached_readonly":
			n.AttachedReadOnly = p.truth()
		case "staged":
			n.Staged = volume.Side(p.shared())
		case "staging_path":
			n.StagingPath = p.own()
		case "mount":
			n.Mount = p.mount()
		case "boot":
			n.Boot = p.shared()
		case "devices":
			n.Devices = list(p, p.own)
		case "seq":
			n.Seq = p.number()
		default:
			p.strange = true
		}
	})
}

func (p *parser) claim(c *volume.Claim) {
	p.object(func(name string) {
		switch name {
		case "alloc":
			c.Alloc = p.shared()
		case "seq":
			c.Seq = p.number()
		case "wanted":
			c.Wanted = p.truth()
		case "state":
			c.State = volume.ClaimState(p.shared())
		case "read_only":
			c.ReadOnly = p.truth()
		case "mode":
			c.Mode = p.capability()
		case "owner":
			p.owner(&c.Owner)
		case "since":
			p.time(&c.Since)
		case "target":
			c.Target = p.own()
		case "published":
			c.Published = volume.Side(p.shared())
		case "mount":
			c.Mount = p.mount()
		case "at":
			c.At = p.own()
		case "bound":
			c.Bound = volume.Side(p.shared())
		case "bound_mount":
			c.BoundMount = p.mount()
		default:
			p.strange = true
		}
	})
}

func (p *parser) owner(o *volume.Owner) {
	p.object(func(name string) {
		switch name {
		case "kind":
			o.Kind = p.shared()
		case "pid":
			o.PID = int(p.number())
		case "start_time":
			o.StartTime = p.number()
		case "unit":
			o.Unit = p.own()
		case "invocation":
			o.Invocation = p.own()
		case "boot":
			o.Boot = p.shared()
		default:
			p.strange = true
		}
	})
}

func (p *parser) mount() *volume.MountIdentity {
	m := &volume.MountIdentity{}
	p.object(func(name string) {
		switch name {
		case "ns":
			m.Namespace = p.number()
		case "boot":
			m.Boot = p.shared()
		case "dev":
			m.Device = p.shared()
		case "root":
			m.Root = p.shared()
		case "fs":
			m.FSType = p.shared()
		case "id":
			m.ID = p.number()
		default:
			p.strange = true
		}
	})
	return m
}

func (p *parser) capability() (c volume.Capability) {
	p.object(func(name string) {
		if !p.access(name, &c) {
			p.strange = true
		}
	})
	return c
}

// access reads a field of a capability, if it is one.
func (p *parser) access(name string, c *volume.Capability) bool {
	switch name {
	case "access_mode":
		c.Access = volume.AccessMode(p.shared())
	case "attachment_mode":
		c.Attachment = volume.AttachmentMode(p.shared())
	default:
		return false
	}
	return true
}
