package statedb

import (
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

const (
	bucketMeta   = "meta"
	bucketClaims = "claims"

	keySchema = "schema"
	keyNode   = "node"

	keyMembership = "membership"
)

// Node is the stored state of the host itself.
type Node struct {
	ID        string `json:"id"`       // CSI node id, chosen at the first start
	Boot      string `json:"boot"`     // boot id of the host when mounts were last made
	Namespace uint64 `json:"ns"`       // mount namespace of the last agent that mounted volumes
	DataDir   string `json:"data_dir"` // data dir that contains the stored paths
	// Clean is set when the agent shuts down properly, and cleared at the next start. Only if Clean
	// is set do the records certainly contain every completed step.
	Clean bool `json:"clean,omitempty"`
	// Draining is set while the host is being drained. The agent then refuses new claims.
	Draining bool `json:"draining,omitempty"`
	Loss     Loss `json:"loss,omitzero"`
}

// Loss describes an earlier state database that was lost or damaged, and that this database
// replaced.
type Loss struct {
	At      time.Time `json:"at"`   // time at which this database was made
	Kept    string    `json:"kept"` // path of the damaged file; empty if the file was missing
	Why     string    `json:"why"`
	Volumes int       `json:"volumes"` // number of volumes that the agent adopted without a record
	Claims  int       `json:"claims"`
	// Copy is the time of the automatic copy from which the other records were restored. It is zero
	// if there was no copy.
	Copy time.Time `json:"copy,omitzero"`
}

// Leftover holds the pending calls of a volume after a forced deregister, as the record that the
// volume had at that time. The agent makes the calls when the plugin is ready.
type Leftover struct {
	Record volume.Record  `json:"record"`
	Claims []volume.Claim `json:"claims"`
	Since  time.Time      `json:"since"`
}

// LeftoverOf returns a Leftover that stores the pending calls of a record.
func LeftoverOf(r volume.Record, since time.Time) Leftover {
	return Leftover{Record: r, Claims: r.Ordered(), Since: since}
}

// Whole returns the record together with its claims.
func (d Leftover) Whole() volume.Record {
	r := whole(d.Record, d.Claims)
	r.Leftover = true
	return r
}

func (d Leftover) key() string { return StorageKey(d.Record.Volume.Driver, d.Record.Volume.ExternalID) }

func whole(r volume.Record, claims []volume.Claim) volume.Record {
	r.Claims = make(map[string]volume.Claim, len(claims))
	for _, c := range claims {
		r.Claims[c.Alloc] = c
	}
	return r
}

// StorageKey returns the key that identifies a storage volume on a host, for example in Leftovers.
// The key is empty until the plugin has named the volume.
func StorageKey(driver, external string) string {
	if external == "" {
		return ""
	}
	return driver + "\x00" + external
}

func recordKey(r volume.Record) string { return r.Volume.ID }

// registeredKey returns the key of a plugin definition. Only the instance may contain any
// character, so it is the last component of the key.
func registeredKey(d plugin.Definition) string {
	return d.ID + "\x00" + d.Type + "\x00" + d.Instance
}
