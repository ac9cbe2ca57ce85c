// Package api is the wire contract between volagent and the clients of its socket: routes, JSON
// types and error codes. It imports the standard library alone, so that a client can depend on it
// and on nothing else.
//
// All bodies are JSON in UTF-8, except the plugin file in a registration. Times are RFC 3339 in
// UTC, sizes are bytes, and durations in queries are Go's ("30s"). Ids in paths are URL-escaped and
// exact: no route accepts a prefix.
//
//	GET    /v1/volumes                        []Volume
//	GET    /v1/volumes/{id}                   Volume      ?for=mounted|free&wait=D waits for that first
//	PUT    /v1/volumes/{id}                   VolumeSpec → VolumeResult (register)   ?dry_run=true decides, writes nothing
//	POST   /v1/volumes/{id}/create            VolumeSpec → VolumeResult   ?dry_run=true&wait=D; a plugin that is still busy with it is asked again until D is over
//	DELETE /v1/volumes/{id}                   DeregisterResult   ?force=true&forget=true
//	POST   /v1/volumes/{id}/delete            Done   ?confirm=ID
//	POST   /v1/volumes/{id}/modify            ModifyRequest → VolumeResult
//	POST   /v1/volumes/{id}/expand            ExpandRequest → VolumeResult   ?wait=D; without wait it answers at once
//	DELETE /v1/volumes/{id}/expand            VolumeResult   cancels an expansion that is not made yet
//	GET    /v1/volumes/{id}/stats             Stats
//	GET    /v1/volumes/{id}/report            Report      ?within=D&storage=true
//	GET    /v1/volumes/{id}/claims/{alloc}    Claim
//	PUT    /v1/volumes/{id}/claims/{alloc}    ClaimRequest → Claim   ?wait=D; without wait it answers at once
//	DELETE /v1/volumes/{id}/claims/{alloc}    Done        ?wait=D&force=true&without_plugin=umount|force|lazy
//	GET    /v1/claims                         []Claim     ?volume=&alloc=&plugin=
//	GET    /v1/plugins                        []Plugin
//	GET    /v1/plugins/{id}                   Plugin      ?for=ready&wait=D
//	POST   /v1/plugins                        text of a plugin file → PluginResult   ?name=FILE&wait=D
//	DELETE /v1/plugins/{id}                   Done        ?force=true&wait=D
//	GET    /v1/plugins/{id}/logs              text        ?lines=N&follow=true
//	GET    /v1/plugins/{id}/volumes           StorageVolumeLine, one a line   ?limit=N
//	GET    /v1/plugins/{id}/health            PluginHealth
//	POST   /v1/plugins/{id}/capacity          CapacityRequest → Capacity
//	POST   /v1/plugins/{id}/restart           Plugin      ?force=true&wait=D; without wait it answers at once
//	POST   /v1/plugins/{id}/stop              Plugin      ?force=true&until_restart=true&wait=D
//	POST   /v1/plugins/{id}/start             Plugin      ?wait=D
//	POST   /v1/plugins/{id}/test              PluginTest → PluginTestLine, one a line, until the test is over
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
//	GET    /v1/state/backup                   the state, as a file; for callers with write permission
//	POST   /v1/state/restore                  the file of a backup → Restore   ?dry_run=true
//	GET    /v1/events                         Event, one a line   ?volume=&since=TIME&n=N&follow=true
//	GET    /v1/health                         Health
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

// Done is the answer of a call that returns nothing else.
type Done struct {
	// Left names the leftovers that stay on purpose, one sentence each.
	Left []string `json:"left,omitempty"`
}

// Health is the answer of GET /v1/health. The agent answers it without asking a plugin or using the
// network.
type Health struct {
	Status  string `json:"status"` // "ok"
	Version string `json:"version"`
	// DB is "ok", the reason why the last commit of the state database failed, or a message that
	// the database was lost and created again. Problems has the full text.
	DB       string   `json:"db,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// Event is one transition. Listings end with the newest.
type Event struct {
	Time time.Time `json:"time"`

	// Seq grows by one with each event, across restarts of the agent too.
	Seq    uint64 `json:"seq"`
	Volume string `json:"volume,omitempty"`
	Alloc  string `json:"alloc,omitempty"`
	Plugin string `json:"plugin,omitempty"`
	Part   string `json:"part,omitempty"` // for a plugin of several parts: "node", "controller a"
	Type   string `json:"type"`           // for example "claim-mounted", "step-failed", "plugin-ready"

	// Step names the step of a volume that the event reports, if it reports one.
	Step    string `json:"step,omitempty"`
	Message string `json:"message"`
}
