package csitest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
)

// Config describes a plugin and its capabilities. Only Base is required. A child process receives
// the Config as JSON.
type Config struct {
	// Base is the directory for all files of the plugin. The plugin creates Base if it is missing.
	// Base must not be below the root of the caller's volume mounts. A child process ends when its
	// Base is removed.
	Base string

	// Journal and Control are the paths of files. By default they are journal.jsonl and
	// control.json in Base. Two plugins must not share a file.
	Journal string
	Control string

	DriverName string // the default is "csitest.example.com"
	Version    string // the default is "1.0.0"
	NodeID     string // the default is "node-1"
	MaxVolumes int64  // the maximum number of volumes on each node; 0 means no limit

	// These are the capabilities. Some fields stand for a pair of calls.
	Attach         bool // PUBLISH_UNPUBLISH_VOLUME
	AttachReadOnly bool // PUBLISH_READONLY
	CreateDelete   bool // CREATE_DELETE_VOLUME
	Stage          bool // STAGE_UNSTAGE_VOLUME
	Stats          bool // GET_VOLUME_STATS
	MultiWriter    bool // SINGLE_NODE_MULTI_WRITER of both services
	Lists          bool // LIST_VOLUMES and GET_CAPACITY
	PublishedNodes bool // LIST_VOLUMES_PUBLISHED_NODES
	Get            bool // GET_VOLUME
	Clone          bool // CLONE_VOLUME
	Modify         bool // MODIFY_VOLUME
	Snapshot       bool // CREATE_DELETE_SNAPSHOT
	ListSnapshots  bool // LIST_SNAPSHOTS
	GetSnapshot    bool // GET_SNAPSHOT
	GroupSnapshot  bool // GROUP_CONTROLLER_SERVICE, with CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
	Expand         bool // EXPAND_VOLUME of the controller
	NodeExpand     bool // EXPAND_VOLUME of the node
	Health         bool // GET_VOLUME_HEALTH of the controller
	ListHealth     bool // LIST_VOLUME_HEALTH
	NodeHealth     bool // GET_VOLUME_HEALTH of the node
	StorageHealth  bool // GET_STORAGE_HEALTH
	Condition      bool // VOLUME_CONDITION of both services, as before CSI 1.13
	MountGroup     bool // VOLUME_MOUNT_GROUP

	// Offline changes the VolumeExpansion of Expand and NodeExpand from ONLINE to OFFLINE.
	Offline bool

	// GrowsAlone means that the controller can expand a volume without the node, and that its
	// answer says so.
	GrowsAlone bool

	// Topology contains the segments of the node's location. Nil means a plugin without
	// VOLUME_ACCESSIBILITY_CONSTRAINTS.
	Topology map[string]string

	// LongPaths permits paths of more than 128 bytes, as most plugins do.
	LongPaths bool

	// Storage limits the size of one volume, and of all volumes together, in bytes. The default is
	// 1 TiB.
	Storage int64

	// Mutable lists the known keys of mutable_parameters. The default is "iops".
	Mutable []string

	// ReadyAfter is the number of answers that describe a new snapshot as not ready. The answer to
	// its creation counts too. A negative number means that a snapshot is never ready.
	ReadyAfter int

	// PageSize limits the number of entries in one page of a list. Zero means no limit.
	PageSize int

	// Serial makes the plugin perform only one call at a time for each volume. The next call for
	// the volume waits, even if the current call is delayed. Without Serial, a delay blocks no
	// other call.
	Serial bool

	// OldSocket makes the plugin fail if the socket file exists, even if no process answers on it.
	// A plugin that calls listen without removing the old file fails in the same way.
	OldSocket bool

	// UnknownCapabilities adds capabilities that no release of the spec has, and capabilities
	// without a value.
	UnknownCapabilities bool

	// Fuse makes NodeStageVolume mount a volume's files through a FUSE file system. The plugin's
	// own process serves the file system, so the mounts break when that process ends.
	Fuse bool

	// Images is a prefix of volume ids. A volume whose id has this prefix stores its files in an
	// ext4 file system on a loop device. The plugin detaches that device in the same way as the
	// device of a block volume. If Images is empty, no volume is stored in this way. All other
	// volumes are directories, which NodeStageVolume bind-mounts at their staging paths.
	Images string

	// LoopDevices makes a block volume a loop device on the file of the volume. Without
	// LoopDevices, the block volume is the plain file. The plain file needs no device and is
	// sufficient for tests of calls and mounts. ControllerUnpublish detaches the loop device if
	// Attach is set. Otherwise NodeUnstage detaches it.
	LoopDevices bool

	// NoController removes the controller service, and NoNode removes the node service. With
	// NoController, Attach means that another plugin connects the volumes. The caller must then
	// pass a publish context, but this plugin cannot check its content.
	NoController bool
	NoNode       bool

	// Volumes contains ids of volumes that exist from the start. With AnyVolume, every id exists.
	Volumes   []string
	AnyVolume bool

	// IDPrefix is the text before the name in the id of a created volume. A prefix with a slash
	// makes ids that look like paths.
	IDPrefix string

	// VolumeContext is the context that the caller must pass for volumes that this plugin did not
	// create. Nil means that the plugin does not check the context. For a created volume, the
	// caller must always pass the context that CreateVolume returned.
	VolumeContext map[string]string

	// WantSecrets contains the secrets that the caller must pass in every call with secrets. Nil
	// means that the plugin does not check secrets. The plugin never writes the values of the
	// secrets.
	WantSecrets map[string]string
}

// envConfig is the environment variable that contains the Config of a child process.
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

// JournalPath returns the path of the journal, even if it is the default.
func (c Config) JournalPath() string { return c.withDefaults().Journal }

// Faults returns the Control of the plugin with this Config.
func (c Config) Faults() Control { return Control{Path: c.withDefaults().Control} }

// Environment returns the environment that makes a child process run a plugin with this Config. The
// process also needs CSI_ENDPOINT.
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

// PluginFile returns a plugin file of volagent. It makes the agent run binary as a plugin with the
// given id. The binary's TestMain must call Main. The file is JSON, which is valid YAML too.
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
