package csitest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
)

// Config describes a plugin and its capabilities. Only Base must be set. A child process receives
// its Config as JSON.
type Config struct {
	// Base is the directory for all files of the plugin. If Base is missing, the plugin creates it.
	// Base must not be below the directory in which the caller mounts volumes. A child process ends
	// when its Base is removed.
	Base string

	// Journal and Control are the paths of the journal and of the control file. The defaults are
	// journal.jsonl and control.json in Base. Two plugins must not use the same files.
	Journal string
	Control string

	DriverName string // default: "csitest.example.com"
	Version    string // default: "1.0.0"
	NodeID     string // default: "node-1"
	MaxVolumes int64  // maximum number of volumes on each node; 0 means no limit

	// The following fields are the capabilities of the plugin. Some of them stand for a pair of
	// calls.
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
	Expand         bool // EXPAND_VOLUME of the controller service
	NodeExpand     bool // EXPAND_VOLUME of the node service
	Health         bool // GET_VOLUME_HEALTH of the controller service
	ListHealth     bool // LIST_VOLUME_HEALTH
	NodeHealth     bool // GET_VOLUME_HEALTH of the node service
	StorageHealth  bool // GET_STORAGE_HEALTH
	Condition      bool // VOLUME_CONDITION of both services, which CSI 1.13 removed
	MountGroup     bool // VOLUME_MOUNT_GROUP

	// Offline changes the type of VolumeExpansion that the plugin reports from ONLINE to OFFLINE.
	Offline bool

	// GrowsAlone is set if the controller can expand a volume without the node. The answer of
	// ControllerExpandVolume then says so.
	GrowsAlone bool

	// Topology contains the topology segments of the node. If it is nil, the plugin lacks
	// VOLUME_ACCESSIBILITY_CONSTRAINTS.
	Topology map[string]string

	// LongPaths permits paths of more than 128 bytes. Most real plugins accept such paths.
	LongPaths bool

	// Storage is the maximum size of one volume, and of all volumes together, in bytes. The default
	// is 1 TiB.
	Storage int64

	// Mutable lists the permitted keys of mutable_parameters. The default is "iops".
	Mutable []string

	// ReadyAfter is the number of answers that report a new snapshot as not ready. The answer of
	// CreateSnapshot counts, too. If the number is negative, a snapshot never becomes ready.
	ReadyAfter int

	// PageSize is the maximum number of entries in one page of a list. Zero means no limit.
	PageSize int

	// Serial makes the plugin perform only one call at a time for each volume. The next call for
	// the volume then waits, even if the current call is delayed. Without Serial, a delay of one
	// call does not block other calls.
	Serial bool

	// OldSocket makes the start of the plugin fail if the socket file exists, even if no process
	// uses the socket. Real plugins that do not remove the old socket file fail in the same way.
	OldSocket bool

	// UnknownCapabilities makes the plugin report additional capabilities: some that the spec does
	// not define, and some without a value.
	UnknownCapabilities bool

	// Fuse makes NodeStageVolume mount a volume's files through a FUSE file system. The process of
	// the plugin serves this file system, so the mounts stop working when the process ends.
	Fuse bool

	// Images is a prefix of volume ids. If the id of a volume begins with this prefix, the files of
	// the volume are in an ext4 file system on a loop device. The plugin detaches the device in the
	// same way as the device of a block volume. All other volumes are directories, which
	// NodeStageVolume bind-mounts at their staging paths. If Images is empty, every volume is a
	// directory.
	Images string

	// LoopDevices makes every block volume a loop device on the file of the volume. Without
	// LoopDevices, a block volume is the plain file, which needs no device and is sufficient for
	// tests of calls and mounts. ControllerUnpublish detaches the loop device if Attach is set.
	// Otherwise NodeUnstage detaches it.
	LoopDevices bool

	// NoController removes the controller service, and NoNode removes the node service. If both
	// NoController and Attach are set, another plugin connects the volumes. The caller must then
	// pass a publish context, but this plugin cannot check its content.
	NoController bool
	NoNode       bool

	// Volumes lists the ids of volumes that exist from the start. If AnyVolume is set, every id is
	// the id of an existing volume.
	Volumes   []string
	AnyVolume bool

	// IDPrefix is the beginning of the id of a created volume. The name of the volume follows. With
	// a slash in the prefix, ids look like paths.
	IDPrefix string

	// VolumeContext is the context that the caller must pass for volumes that this plugin did not
	// create. Nil means that the plugin does not check the context of such volumes. For a created
	// volume, the caller must always pass the context that CreateVolume returned.
	VolumeContext map[string]string

	// WantSecrets contains the secrets that the caller must pass in every call that has a field for
	// secrets. Nil means that the plugin does not check secrets. The plugin never writes the values
	// of secrets to the journal.
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

// JournalPath returns the path of the journal. It may be the default path.
func (c Config) JournalPath() string { return c.withDefaults().Journal }

// Faults returns the Control of a plugin that has this Config.
func (c Config) Faults() Control { return Control{Path: c.withDefaults().Control} }

// Environment returns the environment variables that make a child process run a plugin with this
// Config. The process also needs CSI_ENDPOINT.
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

// PluginFile returns the content of a volagent plugin file, which makes the agent run binary as a
// plugin with the given id. The TestMain function of the binary must call Main. The content is
// JSON, which is also valid YAML.
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
