package csitest

import (
	"encoding/json"
	"fmt"
	"path/filepath"
)

// Config says what the plugin is and can do. Only Base is required. It travels
// to a child process as JSON.
type Config struct {
	// Base is the directory of everything the plugin keeps. It is made if
	// missing, and must not lie under the mount root of the caller. A child
	// whose Base is removed ends.
	Base string
	// Journal and Control are files; by default journal.jsonl and control.json
	// in Base. Two plugins must not share them.
	Journal string
	Control string

	DriverName string // default "csitest.example.com"
	Version    string // default "1.0.0"
	NodeID     string // default "node-1"
	MaxVolumes int64  // per node; 0 is no limit

	// Capabilities. Each stands for the pair of calls, where there is one.
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

	// Offline makes the VolumeExpansion that goes with Expand and NodeExpand
	// OFFLINE; else it is ONLINE.
	Offline bool
	// GrowsAlone: the controller's part of an expansion suffices, and its answer
	// says that the node's is not required.
	GrowsAlone bool
	// Topology is where the node is, in segments; nil is a plugin without
	// VOLUME_ACCESSIBILITY_CONSTRAINTS.
	Topology map[string]string
	// LongPaths: it accepts paths of more than 128 bytes, as most plugins do.
	LongPaths bool
	// Storage is how many bytes one volume may have, and all of them together;
	// default 1 TiB.
	Storage int64
	// Mutable are the keys of mutable_parameters that it knows; default "iops".
	Mutable []string
	// ReadyAfter is how often a new snapshot is asked for before it is ready to be
	// used, its creation included; negative is for ever.
	ReadyAfter int
	// PageSize is the most entries in one page of a list; 0 is no limit.
	PageSize int

	// Serial does one call at a time for a volume, delays included: the next one
	// waits. Else a delay holds nobody up.
	Serial bool
	// OldSocket: a socket file that is there already, dead or not, is an error,
	// as it is to a plugin that just listens.
	OldSocket bool
	// UnknownCapabilities adds some that no release of the spec has, and some
	// that say nothing at all.
	UnknownCapabilities bool
	// Fuse stages a volume's files through a FUSE file system that the plugin's own
	// process serves: its mounts die with it.
	Fuse bool
	// Images is how the ids of volumes begin whose files lie in a file system of their
	// own, on a device: ext4 on a loop device, which goes as that of a block volume.
	// Empty is no volume. Others are directories, bound where they are staged.
	Images string
	// LoopDevices makes a block volume a loop device on its file; else it is
	// the plain file, which needs no device and suffices to see calls and mounts.
	// With Attach the device goes at the detach, else at the unstage.
	LoopDevices bool

	// A plugin without one of the two services. With NoController, Attach says
	// that another plugin attaches: a publish context must then be there, and
	// cannot be compared.
	NoController bool
	NoNode       bool

	// Volumes are ids that exist from the start; with AnyVolume every id does.
	Volumes   []string
	AnyVolume bool
	// IDPrefix precedes the name in the id of a created volume. A slash makes
	// ids that look like paths.
	IDPrefix string

	// VolumeContext is what the caller must pass for volumes that were not
	// created here; nil is not checked. For a created volume it is always what
	// CreateVolume answered.
	VolumeContext map[string]string
	// WantSecrets is what every call that takes secrets must carry; nil is not
	// checked. Values are never written down.
	WantSecrets map[string]string
}

// envConfig carries the Config of a child process.
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

// JournalPath is where the journal is, default included.
func (c Config) JournalPath() string { return c.withDefaults().Journal }

// Faults is the control of the plugin with this Config.
func (c Config) Faults() Control { return Control{Path: c.withDefaults().Control} }

// Environment is what a child process needs, beside CSI_ENDPOINT, to be a
// plugin with this Config.
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

// PluginFile is a plugin file of volagent that runs binary, whose TestMain must
// call Main, as plugin id. It is JSON, which is YAML too.
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
