// Package wire defines the values that volctl and volagent-etcd exchange. volctl starts
// "volagent-etcd control", writes a Request to its standard input, and reads a Response from its
// standard output. No secret is therefore an argument of a process.
package wire

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// These are the default ports of a host.
const (
	ClientPort = 2379 // etcd's port for agents
	PeerPort   = 2380 // etcd's port for the other members
	JoinPort   = 2391 // the port on which a member lets other hosts join
)

// TokenLife is the time for which a join token is valid, unless its maker says otherwise.
const TokenLife = time.Hour

// Role is the part of a host in the cluster.
type Role string

// These are the roles.
const (
	RoleMember  Role = "member"  // runs etcd and an agent
	RoleWitness Role = "witness" // runs etcd, so that it can vote, and no agent
	RoleClient  Role = "client"  // runs an agent, and no etcd
)

// These are the commands in a Request.
const (
	Init     = "init"
	Join     = "join"
	Token    = "token"
	Status   = "status"
	Leave    = "leave"
	Remove   = "remove"
	Backup   = "backup"
	Restore  = "restore"
	Restored = "restored"
	Resume   = "resume"
	Compact  = "compact"
	Upgrade  = "upgrade"
)

// Request is one command of volctl. Each command uses some of the fields.
type Request struct {
	Command   string `json:"command"`
	DataDir   string `json:"data_dir"`   // of volagent-etcd
	ConfigDir string `json:"config_dir"` // of volagent

	Host    Host          `json:"host,omitzero"`     // init, join
	NoStart bool          `json:"no_start"`          // init, join, restore: do not start the unit
	Prefix  string        `json:"prefix,omitempty"`  // init
	Life    time.Duration `json:"life,omitempty"`    // init: of certificates; token: of the token
	Token   string        `json:"token,omitempty"`   // join
	Role    Role          `json:"role,omitempty"`    // join: empty lets the cluster choose
	Quota   int64         `json:"quota,omitempty"`   // init, compact: the limit of etcd's data, in bytes
	Member  string        `json:"member,omitempty"`  // remove
	File    string        `json:"file,omitempty"`    // backup, restore: an absolute path
	Force   bool          `json:"force,omitempty"`   // backup: replace the file
	Forget  bool          `json:"forget,omitempty"`  // leave: without asking the cluster
	DryRun  bool          `json:"dry_run,omitempty"` // upgrade
}

// Host says how the others reach a host.
type Host struct {
	Name       string `json:"name"`
	Node       string `json:"node,omitempty"`   // the node id of the host's agent; empty means Name
	Address    string `json:"address"`          // an IP address or a host name
	Listen     string `json:"listen,omitempty"` // an IP address; empty means Address, or all addresses for a host name
	ClientPort int    `json:"client_port"`
	PeerPort   int    `json:"peer_port"`
	JoinPort   int    `json:"join_port"`
}

// Response is the answer to a Request. Either Error is set or Result.
type Response struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *api.Error      `json:"error,omitempty"`
}

// Done is the result of the commands that change the cluster.
type Done struct {
	ClusterID   string    `json:"cluster_id,omitempty"`
	Role        Role      `json:"role,omitempty"`
	Token       string    `json:"token,omitempty"`
	Expires     time.Time `json:"expires,omitzero"`
	File        string    `json:"file,omitempty"`
	Bytes       int64     `json:"bytes,omitempty"`
	Version     string    `json:"version,omitempty"` // of etcd
	Epoch       int64     `json:"epoch,omitempty"`
	Schema      int       `json:"schema,omitempty"`
	Started     bool      `json:"started,omitempty"`      // volagent-etcd runs now
	AgentConfig string    `json:"agent_config,omitempty"` // the file that the agent reads after a restart

	// Lines tell a person about the outcome and about what to do next.
	Lines []string `json:"lines"`
}

// ClusterStatus is the result of the command status.
type ClusterStatus struct {
	ClusterID string       `json:"cluster_id"`
	Epoch     int64        `json:"epoch"`
	Schema    int          `json:"schema"`
	Suspended string       `json:"suspended,omitempty"`
	Self      string       `json:"self"`
	Quorum    bool         `json:"quorum"` // a majority of the voters answers
	Tolerates int          `json:"tolerates"`
	Hosts     []HostStatus `json:"hosts"`
	Problems  []Problem    `json:"problems"`
}

// Problem is one thing that an operator should know, with the command or action that solves it.
type Problem struct {
	Text string `json:"text"`
	Fix  string `json:"fix,omitempty"`
}

// HostStatus describes one host of the cluster.
type HostStatus struct {
	Name     string    `json:"name"`
	Role     Role      `json:"role"`
	Endpoint string    `json:"endpoint,omitempty"` // of its etcd
	ID       string    `json:"id,omitempty"`       // of its etcd
	Voter    bool      `json:"voter"`
	Leader   bool      `json:"leader"`
	Healthy  bool      `json:"healthy"`
	Error    string    `json:"error,omitempty"`
	Version  string    `json:"version,omitempty"` // of its etcd
	Size     int64     `json:"size,omitempty"`    // of etcd's data on disk, in bytes
	InUse    int64     `json:"in_use,omitempty"`
	Quota    int64     `json:"quota,omitempty"`
	Alarms   []string  `json:"alarms,omitempty"`
	CertEnd  time.Time `json:"cert_end,omitzero"`
}

// Errorf returns an error with a code and a hint. The hint is one command or one action; it may be
// empty.
func Errorf(code api.Code, hint, format string, args ...any) error {
	return &api.Error{Code: code, Hint: hint, Message: fmt.Sprintf(format, args...)}
}
