package member

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// These are the keys of volagent-etcd. They are outside the prefix of the agents.
const (
	HostsPrefix  = "/volagent-etcd/hosts/"
	TokensPrefix = "/volagent-etcd/tokens/"
)

// Host describes a host of the cluster. It is the value of the key of the host.
type Host struct {
	wire.Host
	Role    wire.Role `json:"role"`
	Version string    `json:"version"` // of its etcd
	CertEnd time.Time `json:"cert_end"`
	Key     string    `json:"key"` // the fingerprint of its key

	// Machine is the machine of the host. The agent registers in the cluster with the same value, so it
	// shows which node id the agent of the host has.
	Machine shared.Machine `json:"machine,omitzero"`
}

// AgentNode returns the node id that the operator has named for the host's agent, or the name of the
// host. The agent may use another one.
func (h Host) AgentNode() string {
	if h.Node != "" {
		return h.Node
	}
	return h.Name
}

// Hosts reads all hosts of the cluster.
func (c *Client) Hosts(ctx context.Context) (map[string]Host, error) {
	kvs, err := c.List(ctx, HostsPrefix)
	if err != nil {
		return nil, err
	}

	hosts := map[string]Host{}
	for _, kv := range kvs {
		var h Host
		if err := json.Unmarshal(kv.Value, &h); err != nil {
			return nil, fmt.Errorf("cannot read key %s: %w", kv.Key, err)
		}
		hosts[h.Name] = h
	}
	return hosts, nil
}

// HostKey returns the key of a host.
func HostKey(name string) string { return HostsPrefix + volume.KeyComponent(name) }

// TokenKey returns the key of a join token.
func TokenKey(id string) string { return TokensPrefix + volume.KeyComponent(id) }

// version1 follows the prefix of the agents in all keys.
const version1 = "/v1/"

// Meta reads the description of the cluster that the agents share.
func (c *Client) Meta(ctx context.Context, prefix string) (shared.Entry[shared.Meta], error) {
	kv, err := c.Get(ctx, prefix+version1+shared.MetaKey)
	if err != nil {
		return shared.Entry[shared.Meta]{}, err
	}
	return DecodeMeta(kv)
}

// DecodeMeta decodes the description of the cluster.
func DecodeMeta(kv KV) (shared.Entry[shared.Meta], error) {
	e, err := shared.Decode[shared.Meta](shared.KV{Key: kv.Key, Value: kv.Value, Mod: kv.Mod})
	if err != nil {
		return e, fmt.Errorf("cannot read the description of the cluster: %w", err)
	}
	return e, nil
}

// SetMeta replaces the description of the cluster, unless it has changed since it was read.
func (c *Client) SetMeta(ctx context.Context, old shared.Entry[shared.Meta], m shared.Meta) error {
	ok, err := c.PutIf(ctx, KV{Key: old.Key, Mod: old.Mod}, old.Encode(m))
	if err == nil && !ok {
		err = wire.Errorf(api.CodeRefused, "run the command again", "another command changed the cluster at the same time")
	}
	return err
}

// Nodes reads all hosts that have registered in the cluster of the agents.
func Nodes(ctx context.Context, c *Client, prefix string) (map[string]shared.Node, error) {
	kvs, err := c.List(ctx, prefix+version1+shared.Nodes().Key)
	if err != nil {
		return nil, err
	}

	nodes := map[string]shared.Node{}
	for _, kv := range kvs {
		e, err := shared.Decode[shared.Node](shared.KV{Key: kv.Key, Value: kv.Value, Mod: kv.Mod})
		if err != nil {
			return nil, fmt.Errorf("cannot read the hosts of the cluster: %w", err)
		}
		if name, ok := shared.LastID(kv.Key); ok {
			nodes[name] = e.Value
		}
	}
	return nodes, nil
}

// NodesOf returns the node ids of the agents on a host. A node belongs to the host that has its machine.
// If no known host has its machine, the node id that the operator has named decides.
func NodesOf(h Host, hosts map[string]Host, nodes map[string]shared.Node) (ids []string) {
	if _, registered := nodes[h.AgentNode()]; !registered {
		ids = append(ids, h.AgentNode())
	}

	var others []Host
	for name, o := range hosts {
		if name != h.Name {
			others = append(others, o)
		}
	}
	for id, n := range nodes {
		if h.runs(id, n.Machine, others) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// runs reports whether the agent with a node id runs on the host.
func (h Host) runs(id string, m shared.Machine, others []Host) bool {
	named := h.AgentNode() == id
	if same(h.Machine, m) {
		// Machines that were cloned may have one identity.
		onClone := slices.ContainsFunc(others, func(o Host) bool { return o.AgentNode() == id && same(o.Machine, m) })
		return named || !onClone
	}

	elsewhere := slices.ContainsFunc(others, func(o Host) bool { return same(o.Machine, m) })
	return named && !elsewhere
}

// same reports whether both values describe one machine. It is false if one of them is not known.
func same(a, b shared.Machine) bool { return a.ID != "" && b.ID != "" && a.Differs(b) == "" }

// Holds returns the volumes on which the host has a hold.
func Holds(ctx context.Context, c *Client, prefix, node string) ([]string, error) {
	kvs, err := c.List(ctx, prefix+version1+shared.HoldsOf(node).Key)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, kv := range kvs {
		if id, ok := shared.LastID(kv.Key); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// RaiseSchema raises the schema of the cluster to the newest one that every registered node
// supports. It returns the schema in force, and the nodes that prevent the wanted one.
func RaiseSchema(ctx context.Context, c *Client, prefix string, want int) (int, []string, error) {
	meta, err := c.Meta(ctx, prefix)
	if err != nil || !meta.Exists() {
		return 0, nil, err
	}
	nodes, err := c.List(ctx, prefix+version1+shared.Nodes().Key)
	if err != nil {
		return 0, nil, err
	}
	infos, err := c.List(ctx, prefix+version1+shared.NodeInfos().Key)
	if err != nil {
		return 0, nil, err
	}

	supported, lacking, err := SupportedSchema(nodes, infos, want)
	if err != nil || supported <= meta.Value.Schema {
		return meta.Value.Schema, lacking, err
	}
	m := meta.Value
	m.Schema = supported
	return supported, lacking, c.SetMeta(ctx, meta, m)
}

// SupportedSchema returns the newest schema, up to want, that all nodes support, and the nodes that do
// not support want. A node that has not told its schema supports only the first one.
func SupportedSchema(nodes, infos []KV, want int) (supported int, lacking []string, err error) {
	of := map[string]int{}
	for _, kv := range infos {
		e, err := shared.Decode[shared.NodeInfo](shared.KV{Key: kv.Key, Value: kv.Value, Mod: kv.Mod})
		if err != nil {
			return 0, nil, fmt.Errorf("cannot read the releases of the nodes: %w", err)
		}
		if id, ok := shared.LastID(kv.Key); ok {
			of[id] = e.Value.Schema
		}
	}

	supported = want
	for _, kv := range nodes {
		id, ok := shared.LastID(kv.Key)
		if !ok {
			continue
		}
		if s := max(1, of[id]); s < want {
			lacking, supported = append(lacking, id), min(supported, s)
		}
	}
	return supported, lacking, nil
}
