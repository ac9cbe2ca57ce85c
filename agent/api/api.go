// Package api defines the HTTP API between volagent and the clients of its socket: routes, JSON types
// and error codes. It imports only the standard library, so that a client needs no other dependency.
//
// All bodies are JSON in UTF-8, except the plugin file in a registration. Times have the format of
// RFC 3339 in UTC, sizes are in bytes, and durations in queries have Go's format ("30s"). Ids in
// paths are URL-escaped. They must be complete: no route accepts a prefix.
//
//	GET    /v1/volumes                        []Volume    ?cluster=true adds the shared volumes of the cluster
//	GET    /v1/volumes/{id}                   Volume      ?for=mounted|free&wait=D waits for that state; ?cluster=true adds the holds
//	PUT    /v1/volumes/{id}                   VolumeSpec → VolumeResult (register)   ?dry_run=true only reports the result
//	POST   /v1/volumes/{id}/create            VolumeSpec → VolumeResult   ?dry_run=true&wait=D; the agent asks a busy plugin again until D is over
//	DELETE /v1/volumes/{id}                   DeregisterResult   ?force=true&forget=true
//	POST   /v1/volumes/{id}/delete            Done   ?confirm=ID
//	POST   /v1/volumes/{id}/modify            ModifyRequest → VolumeResult
//	POST   /v1/volumes/{id}/expand            ExpandRequest → VolumeResult   ?wait=D; without wait it answers at once
//	DELETE /v1/volumes/{id}/expand            VolumeResult   cancels an expansion that the plugin has not made yet
//	POST   /v1/volumes/{id}/share             VolumeResult   ?force=true; makes a volume of this host a shared volume
//	DELETE /v1/volumes/{id}/share             VolumeResult   makes a shared volume a volume of this host
//	GET    /v1/volumes/{id}/stats             Stats
//	GET    /v1/volumes/{id}/report            Report      ?within=D&storage=true
//	GET    /v1/volumes/{id}/claims/{alloc}    Claim
//	PUT    /v1/volumes/{id}/claims/{alloc}    ClaimRequest → Claim   ?wait=D; without wait it answers at once
//	DELETE /v1/volumes/{id}/claims/{alloc}    Done        ?wait=D&force=true&without_plugin=umount|force|lazy
//	GET    /v1/claims                         []Claim     ?volume=&alloc=&plugin=
//	GET    /v1/classes                        []Class
//	GET    /v1/classes/{id}                   Class
//	GET    /v1/plugins                        []Plugin
//	GET    /v1/plugins/{id}                   Plugin      ?for=ready&wait=D
//	POST   /v1/plugins                        text of a plugin file → PluginResult   ?name=FILE&wait=D
//	DELETE /v1/plugins/{id}                   Done        ?force=true&wait=D
//	GET    /v1/plugins/{id}/logs              text        ?lines=N&follow=true
//	GET    /v1/plugins/{id}/volumes           StorageVolumeLine, one in each line   ?limit=N
//	GET    /v1/plugins/{id}/health            PluginHealth
//	POST   /v1/plugins/{id}/capacity          CapacityRequest → Capacity
//	POST   /v1/plugins/{id}/restart           Plugin      ?force=true&wait=D; without wait it answers at once
//	POST   /v1/plugins/{id}/stop              Plugin      ?force=true&until_restart=true&wait=D
//	POST   /v1/plugins/{id}/start             Plugin      ?wait=D
//	POST   /v1/plugins/{id}/test              PluginTest → PluginTestLine, one in each line, until the test ends
//	POST   /v1/snapshots                      SnapshotRequest → Snapshot   ?wait=D; without wait it answers at once
//	GET    /v1/snapshots                      Snapshots   ?plugin=&volume=&secrets=JSON&pending=true
//	POST   /v1/snapshots/{plugin}/{id}/delete SnapshotRef → Done   ?wait=D&forget=true
//	POST   /v1/snapshots/groups               GroupSnapshotRequest → GroupSnapshot   ?wait=D
//	GET    /v1/snapshots/groups/{plugin}/{id} GroupSnapshot   ?snapshot=ID…&secrets=JSON
//	POST   /v1/snapshots/groups/{plugin}/{id}/delete   SnapshotRef → Done   ?wait=D
//	GET    /v1/node                           Node
//	GET    /v1/doctor                         Doctor
//	POST   /v1/doctor/fix                     DoctorFix → []DoctorFixed
//	POST   /v1/node/drain                     Drain       ?wait=D; without wait it answers at once, and the drain continues
//	POST   /v1/node/undrain                   Undrained
//	GET    /v1/nodes                          []ClusterHost
//	GET    /v1/nodes/{id}                     ClusterHost
//	POST   /v1/nodes/{id}/fence               FenceRequest → Fenced
//	POST   /v1/nodes/{id}/unfence             → Unfenced
//	POST   /v1/nodes/{id}/fence-test          FenceTestRequest → FenceTested
//	POST   /v1/nodes/{id}/replace             ReplaceRequest → Replaced
//	GET    /v1/state/backup                   the state, as a file; for callers with write permission
//	POST   /v1/state/restore                  the file of a backup → Restore   ?dry_run=true
//	GET    /v1/events                         Event, one in each line   ?volume=&type=TYPE…&since=TIME&n=N&follow=true
//	GET    /v1/health                         Health
//
// If the agent cannot read the cluster, an answer with ?cluster=true contains only the records of the host.
// The header Volagent-Warning then says so.
package api

import (
	"net/url"
	"time"
)

// Prefix is the path with which all routes start.
const Prefix = "/v1"

// Path joins escaped ids to a route: Path("volumes", id, "stats").
func Path(parts ...string) string {
	p := Prefix
	for _, s := range parts {
		p += "/" + url.PathEscape(s)
	}
	return p
}

// Done is the answer of a call that has no other result.
type Done struct {
	// Left describes, in one sentence each, the leftovers that the agent does not remove.
	Left []string `json:"left,omitempty"`
}

// Health is the answer of GET /v1/health. The agent produces it without the plugins and without the
// network.
type Health struct {
	Status  string `json:"status"` // always "ok"
	Version string `json:"version"`
	// DB is "ok", the reason why the last commit of the state database failed, or a message that
	// the database was lost and created again. Problems contains the full text.
	DB       string   `json:"db,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// Event is one state transition. A list of events ends with the newest.
type Event struct {
	Time time.Time `json:"time"`

	// Seq increases by one with each event. The numbers continue after a restart of the agent.
	Seq    uint64 `json:"seq"`
	Volume string `json:"volume,omitempty"`
	Alloc  string `json:"alloc,omitempty"`
	Plugin string `json:"plugin,omitempty"`
	Part   string `json:"part,omitempty"` // set if the plugin has several parts, for example "node" or "controller a"
	Type   string `json:"type"`           // such as "claim-mounted", "step-failed", "plugin-ready"

	// Step is the name of the volume's step, if the event concerns a step.
	Step    string `json:"step,omitempty"`
	Message string `json:"message"`
}
