// Package hostdir keeps the data directory of volagent-etcd on one host. These are its files:
//
//	member.json       the host's part in the cluster; a host without it is in no cluster
//	lock              locked by the running volagent-etcd, or by a command that changes the directory
//	ca.crt, ca.key    the cluster's authority; the key exists on members only
//	host.crt, .key    the certificate of volagent-etcd: for etcd, its peers and commands
//	agent.crt, .key   the certificate of the host's agent
//	etcd/             etcd's data, on members only
//	left-TIME/        what the host had before it left the cluster
package hostdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// These are the default directories.
const (
	DefaultDataDir   = "/var/lib/volagent-etcd"
	DefaultConfigDir = "/etc/volagent"
)

// These are the names of files in the data directory.
const (
	CACert    = "ca.crt"
	CAKey     = "ca.key"
	HostCert  = "host.crt"
	HostKey   = "host.key"
	AgentCert = "agent.crt"
	AgentKey  = "agent.key"
	EtcdDir   = "etcd"
	stateFile = "member.json"
)

// clusterFile is the file with the agent's section "cluster", in the configuration directory.
const clusterFile = "cluster.yaml"

// fileMark is the first line of a cluster file that volagent-etcd wrote.
const fileMark = "# Written by volagent-etcd, which updates the endpoints.\n"

// Dir is the data directory, with the configuration directory of the agent.
type Dir struct{ Data, Config string }

// State is the host's part in the cluster.
type State struct {
	wire.Host
	ClusterID string        `json:"cluster_id"`
	Role      wire.Role     `json:"role"`
	Prefix    string        `json:"prefix"`
	Life      time.Duration `json:"life"`            // of certificates
	Quota     int64         `json:"quota,omitempty"` // of etcd's data, in bytes

	// EtcdCluster is the id that etcd gave to its cluster, in hexadecimal digits. It is empty until
	// etcd has run.
	EtcdCluster string `json:"etcd_cluster,omitempty"`

	// Boot is a random token of a new cluster, of which this host is the first member. It is empty on
	// a host that joined an existing cluster.
	Boot string `json:"boot,omitempty"`

	// Members are the members that the host knows last, so that it can ask others when its own etcd
	// does not answer.
	Members []Peer `json:"members"`
}

// Peer is a member of the cluster.
type Peer struct {
	Name   string `json:"name"`
	Client string `json:"client"` // the URL for clients
	Peer   string `json:"peer"`   // the URL for the other members
	Voter  bool   `json:"voter"`
}

// ClientURL returns the URL of the host's etcd for clients.
func (s State) ClientURL() string { return url(s.Address, s.ClientPort) }

// PeerURL returns the URL of the host's etcd for the other members.
func (s State) PeerURL() string { return url(s.Address, s.PeerPort) }

// JoinAddress returns the address of the host's join listener.
func (s State) JoinAddress() string { return net.JoinHostPort(s.Address, strconv.Itoa(s.JoinPort)) }

// RunsEtcd reports whether the host runs etcd.
func (s State) RunsEtcd() bool { return s.Role != wire.RoleClient }

// Names returns the names and addresses in the host's certificate.
func (s State) Names() []string {
	names := []string{s.Address, "localhost", "127.0.0.1", "::1"}
	if s.Listen != "" && s.Listen != s.Address {
		names = append(names, s.Listen)
	}
	return names
}

// Endpoints returns the URLs of etcd for clients. The host's own etcd is the first one.
func (s State) Endpoints() []string {
	var urls []string
	if s.RunsEtcd() {
		urls = append(urls, s.ClientURL())
	}
	for _, m := range s.Members {
		if m.Client != "" && m.Client != s.ClientURL() {
			urls = append(urls, m.Client)
		}
	}
	return urls
}

// AgentEndpoints returns the URLs of etcd for the agent: those of the voters, because a learner answers
// only few requests. The host's own etcd is the first one if it votes. While the host knows no voter, the
// list has all endpoints, so it is never empty on a host that has a cluster.
func (s State) AgentEndpoints() []string {
	var voters []string
	for _, m := range s.Members {
		switch {
		case !m.Voter || m.Client == "":
		case m.Client == s.ClientURL():
			voters = slices.Insert(voters, 0, m.Client)
		default:
			voters = append(voters, m.Client)
		}
	}
	if len(voters) == 0 {
		return s.Endpoints()
	}
	return voters
}

func url(host string, port int) string {
	return "https://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// Path returns the path of a file in the data directory.
func (d Dir) Path(name string) string { return filepath.Join(d.Data, name) }

// ClusterFile returns the path of the agent's cluster file.
func (d Dir) ClusterFile() string { return filepath.Join(d.Config, clusterFile) }

// Load reads the state. It returns an error with CodeNotFound if the host is in no cluster.
func (d Dir) Load() (State, error) {
	var s State
	raw, err := os.ReadFile(d.Path(stateFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, wire.Errorf(api.CodeNotFound, "volctl cluster init, or volctl cluster join", "this host is in no cluster of volagent-etcd")
	case err != nil:
		return s, fmt.Errorf("cannot read the state of volagent-etcd: %w", err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("cannot read %s: %w", d.Path(stateFile), err)
	}

	return s, nil
}

// Save writes the state.
func (d Dir) Save(s State) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode the state of volagent-etcd: %w", err)
	}
	return d.Write(stateFile, append(raw, '\n'))
}

// Prepare creates the data directory for a new member. It refuses a directory that belongs to a
// cluster already, or that holds data of an etcd.
func (d Dir) Prepare() error {
	s, err := d.Load()
	var e *api.Error
	switch {
	case err == nil:
		return wire.Errorf(api.CodeRefused, "volctl cluster status", "this host is in cluster %s already, as %s %q", s.ClusterID, s.Role, s.Name)
	case !errors.As(err, &e):
		return err
	}

	entries, err := os.ReadDir(d.Path(EtcdDir))
	if err == nil && len(entries) > 0 {
		return wire.Errorf(api.CodeRefused, "move the directory away, or name another one with --etcd-dir",
			"directory %s contains the data of an etcd that belongs to another cluster", d.Path(EtcdDir))
	}
	if raw, err := os.ReadFile(d.ClusterFile()); err == nil && !written(raw) {
		return wire.Errorf(api.CodeRefused, "remove the file first, if the host shall use the bundled etcd",
			"the agent of this host uses another etcd: file %s exists", d.ClusterFile())
	}
	if err := os.MkdirAll(d.Data, 0o700); err != nil {
		return fmt.Errorf("cannot create the data directory of volagent-etcd: %w", err)
	}

	return nil
}

// Write replaces a file of the data directory. Other users cannot read it.
func (d Dir) Write(name string, data []byte) error { return replace(d.Path(name), data) }

// Read reads a file of the data directory.
func (d Dir) Read(name string) ([]byte, error) { return ReadFile(d.Path(name)) }

// ReadFile reads a file of the cluster.
func ReadFile(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read a file of volagent-etcd: %w", err)
	}
	return data, nil
}

// Has reports whether a file of the data directory exists.
func (d Dir) Has(name string) bool {
	_, err := os.Stat(d.Path(name))
	return err == nil
}

// section is the agent's section "cluster".
type section struct {
	Endpoints []string `yaml:"endpoints"`
	CA        string   `yaml:"ca"`
	Cert      string   `yaml:"cert"`
	Key       string   `yaml:"key"`
	Prefix    string   `yaml:"prefix"`
}

// WriteCluster writes the agent's cluster file if it differs, and reports whether it did. Keys that
// an operator added are kept. A file that volagent-etcd did not write is not touched.
func (d Dir) WriteCluster(s State) (bool, error) {
	want := section{s.AgentEndpoints(), d.Path(CACert), d.Path(AgentCert), d.Path(AgentKey), s.Prefix}
	old, err := os.ReadFile(d.ClusterFile())
	switch {
	case err == nil && !written(old):
		return false, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("cannot read the agent's cluster file: %w", err)
	}

	all := map[string]any{}
	if err := yaml.Unmarshal(old, &all); err != nil {
		return false, fmt.Errorf("cannot read %s: %w", d.ClusterFile(), err)
	}
	all["endpoints"], all["ca"], all["cert"], all["key"], all["prefix"] = want.Endpoints, want.CA, want.Cert, want.Key, want.Prefix

	text, err := yaml.Marshal(all)
	if err != nil {
		return false, fmt.Errorf("cannot encode the agent's cluster file: %w", err)
	}
	text = append([]byte(fileMark), text...)
	if string(text) == string(old) {
		return false, nil
	}
	if err := os.MkdirAll(d.Config, 0o755); err != nil {
		return false, fmt.Errorf("cannot create the configuration directory: %w", err)
	}

	return true, replace(d.ClusterFile(), text)
}

// written reports whether volagent-etcd wrote a cluster file.
func written(raw []byte) bool { return strings.HasPrefix(string(raw), fileMark) }

// Leave moves everything of the cluster to a directory of its own, and removes the agent's cluster
// file. It deletes no data. It returns the path of the directory.
func (d Dir) Leave(now time.Time) (string, error) {
	aside := d.Path("left-" + now.UTC().Format("20060102T150405Z"))
	if err := os.Mkdir(aside, 0o700); err != nil {
		return "", fmt.Errorf("cannot create a directory for the old data: %w", err)
	}

	// The state is the last one, so that an interrupted leave can be repeated.
	names := []string{CACert, CAKey, HostCert, HostKey, AgentCert, AgentKey, EtcdDir, stateFile}
	for _, name := range names {
		err := os.Rename(d.Path(name), filepath.Join(aside, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("cannot move the old data: %w", err)
		}
	}

	if raw, err := os.ReadFile(d.ClusterFile()); err == nil && written(raw) {
		if err := os.Remove(d.ClusterFile()); err != nil {
			return "", fmt.Errorf("cannot remove the agent's cluster file: %w", err)
		}
	}

	return aside, nil
}

// ErrLocked means that volagent-etcd runs, or that another command changes the directory.
var ErrLocked = errors.New("the data directory is in use")

// Lock takes the lock of the data directory. It returns ErrLocked if another process has it. The file
// contains the pid of the process with the lock.
func (d Dir) Lock() (unlock func(), err error) {
	f, err := os.OpenFile(d.Path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock of volagent-etcd: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, fmt.Errorf("cannot lock %s: %w", d.Data, err)
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid()))); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot write the lock of volagent-etcd: %w", err)
	}

	return func() { _ = f.Close() }, nil // closing the file releases the lock
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// Locker returns the pid of the process that has the lock, or 0 if the pid is not known.
func (d Dir) Locker() int {
	raw, err := os.ReadFile(d.Path("lock"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(raw))
	if err != nil || pid < 2 {
		return 0
	}
	return pid
}

// replace writes a file and syncs it to disk. After a crash, the file has the old or the new content.
func replace(path string, data []byte) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}

	return SyncDir(filepath.Dir(path))
}

// SyncDir syncs a directory to disk, with the names of its files.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot sync directory %s: %w", dir, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("cannot sync directory %s: %w", dir, err)
	}
	return nil
}
