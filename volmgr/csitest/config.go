package csitest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
)

// Config describes the plugin and its capabilities. Only Base is required. A child process gets the
// Config as JSON.
type Config struct {
	// Base is the directory for all of the plugin's files. It is created if it is missing. It must
	// not be below the root of the caller's volume mounts. A child ends when its Base is removed.
	Base string

	// Journal and Control are files. By default they are journal.jsonl and control.json in Base.
	// Two plugins must not share them.
	Journal string
	Control string

	DriverName string // default "csitest.example.com"
	Version    string // default "1.0.0"
	NodeID     string // default "node-1"
	MaxVolumes int64  // for each node; 0 means no limit

	// Capabilities. If a capability covers a pair of calls, it stands for both.
	Attach         bool // PUBLISH_UNPUBLISH_VOLUME
	AttachReadOnly bool // PUBLISH_READONLY
	CreateDelete   bool // CREATE_DELETE_VOLUME
	Stage          bool // STAGE_UNSTAGE_VOLUME
	Stats          bool // GET_VOLUME_STATS
	MultiWriter    bool // SINGLE_NODE_MULTI_WRITER, of both services
	Lists          bool // LIST_VOLUMES and GET_CAPACITY
	PublishedNodes bool // LIST_VOLUMES_PUBLISHED_NODES
	Get            bool // GET_VOLUME
	Clone          bool // CLONE_VOLUME
	Modify         bool // MODIFY_VOLUME
	Snapshot       bool // CREATE_DELETE_SNAPSHOT
	ListSnapshots  bool // LIST_SNAPSHOTS
	GetSnapshot    bool // GET_SNAPSHOT
	GroupSnapshot  bool // GROUP_CONTROLLER_SERVICE, and CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT in it
	Expand         bool // EXPAND_VOLUME of the controller
	NodeExpand     bool // EXPAND_VOLUME of the node
	Health         bool // GET_VOLUME_HEALTH of the controller
	ListHealth     bool // LIST_VOLUME_HEALTH
	NodeHealth     bool // GET_VOLUME_HEALTH of the node
	StorageHealth  bool // GET_STORAGE_HEALTH
	Condition      bool // VOLUME_CONDITION of both services, as before CSI 1.13
	MountGroup     bool // VOLUME_MOUNT_GROUP

	// Offline changes the VolumeExpansion for Expand and NodeExpand from ONLINE to OFFLINE.
	Offline bool

	// GrowsAlone means that the controller's part of an expansion suffices, and that its answer
	// says so.
	GrowsAlone bool

	// Topology is the location of the node, as segments; nil means a plugin without
	// VOLUME_ACCESSIBILITY_CONSTRAINTS.
	Topology map[string]string

	// LongPaths accepts paths of more than 128 bytes, as most plugins do.
	LongPaths bool

	// Storage limits the size of one volume, and of all volumes together, in bytes; default 1 TiB.
	Storage int64

	// Mutable are the known keys of mutable_parameters; default "iops".
	Mutable []string

	// ReadyAfter is the number of answers about a new snapshot, including its creation, before it
	// is ready. Negative means never.
	ReadyAfter int

	// PageSize limits the entries in one page of a list; 0 means no limit.
	PageSize int

	// Serial runs one call at a time for each volume, including delays: the next one waits. Without
	// it, a delay blocks no other call.
	Serial bool

	// OldSocket makes an existing socket file an error, even if it is stale, like a plugin that
	// simply listens.
	OldSocket bool

	// UnknownCapabilities adds capabilities that no release of the spec has, and empty ones.
	UnknownCapabilities bool

	// Fuse stages a volume's files through a FUSE file system that the plugin's own process serves.
	// The mounts break when the process ends.
	Fuse bool

	// Images is the prefix of the ids of volumes whose files are in a file system of their own:
	// ext4 on a loop device. The device is detached like that of a block volume. With an empty
	// Images there are no such volumes. Other volumes are directories, which are bound at their
	// staging paths.
	Images string

	// LoopDevices makes a block volume a loop device on its file. Without it, the block volume is
	// the plain file, which needs no device and suffices to see calls and mounts. The device is
	// detached by ControllerUnpublish if Attach is set, and otherwise by the unstage.
	LoopDevices bool

	// NoController and NoNode remove one of the two services. With NoController, Attach means that
	// another plugin connects the volumes. A publish context must then be present, but its content
	// cannot be checked.
	NoController bool
	NoNode       bool

	// Volumes are ids that exist from the start. With AnyVolume every id exists.
	Volumes   []string
	AnyVolume bool

	// IDPrefix precedes the name in the id of a created volume. A slash makes ids that look like
	// paths.
	IDPrefix string

	// VolumeContext is the context that the caller must pass for volumes that were not created
	// here; nil means that it is not checked. For a created volume it is always the context that
	// CreateVolume answered.
	VolumeContext map[string]string

	// WantSecrets are the secrets that every call with secrets must contain; nil means that they
	// are not checked. The plugin never writes their values.
	WantSecrets map[string]string
}

// envConfig is the environment variable with the Config of a child process.
const envConfig = "CSITEST_CONFIG"

func (c Config) withDefaults() Config {
	set := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}

	set(&c.Journal, filepath.Join(c.Base, "journal.jsonl"))
	set(&c.Control, filepath.Join(c.Base, "control.json"))
	set(&c.DriverName, "csitest.example.com")
	set(&c.Version, "1.0.0")
	set(&c.NodeID, "node-1")
	if c.Storage == 0 {
		c.Storage = 1 << 40
	}
	if c.Mutable == nil {
		c.Mutable = []string{"iops"}
	}

	return c
}

// JournalPath returns the path of the journal, including the default.
func (c Config) JournalPath() string { return c.withDefaults().Journal }

// Faults returns the control of the plugin with this Config.
func (c Config) Faults() Control { return Control{Path: c.withDefaults().Control} }

// Environment returns the environment that a child process needs, in addition to CSI_ENDPOINT, to
// run a plugin with this Config.
func (c Config) Environment() ([]string, error) {
	v, err := c.encode()
	if err != nil {
		return nil, err
	}
	return []string{envConfig + "=" + v}, nil
}

func (c Config) encode() (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("cannot encode the plugin's config: %w", err)
	}
	return string(b), nil
}

// PluginFile returns a plugin file of volagent that runs binary as plugin id. The binary's TestMain
// must call Main. The file is JSON, which is also YAML.
func (c Config) PluginFile(id, binary string) ([]byte, error) {
	v, err := c.encode()
	if err != nil {
		return nil, err
	}

	b, err := json.MarshalIndent(map[string]any{
		"id": id,
		"exec": map[string]any{
			"command": []string{binary},
			"env":     map[string]string{envConfig: v},
		},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot encode the plugin file: %w", err)
	}

	return append(b, '\n'), nil
}
