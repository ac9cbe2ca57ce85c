// Package shared is the domain of the volumes that the hosts of a cluster share. It defines the keys
// and values in the cluster's store, and decides which transaction changes them. Every decision is a
// function of the keys that one read has returned, and has no effect. Package agent/hold carries the
// decisions out.
//
// These are the keys. Each id is escaped by volume.KeyComponent:
//
//	meta                       schema, id and epoch of the cluster
//	nodes/<node>               identity and state of a host; every write of the host compares it
//	nodeinfo/<node>            the plugins of a host
//	live/<node>                shows that a host is alive; deleted with its lease
//	volumes/<volume>           the definition of a volume
//	external/<driver>/<hash>   the one volume that uses a storage volume
//	use/<volume>               the mode in force, and the holder in single-node modes
//	users/<volume>/<node>      one host that uses a volume in a mode for several hosts
//	holds/<node>/<volume>      the right of a host to use a volume
//	calls/<volume>             the controller call in flight for a volume
//	tasks/<node>/<volume>      a controller call that another host asks a host to make
//	fenced/<node>/<incarnation>  the proof that a host with this incarnation cannot write any more
//	wanted/<volume>/<node>     a host waits for a volume of a host that is gone; deleted with its lease
//	returned/<node>            a fenced host is back; deleted with its lease
//	moves/<volume>             the order of a person to move a volume to another host; has a lease
//	leader                     the host that cleans up first; deleted with its lease
//	status/<node>              what people see of a host
//	notices/<volume>           tells the hosts that use a volume that its definition has changed
//	removed                    the volume that was last removed from the cluster, for events
//	questions/<driver>/<hash>  asks all hosts whether they use a storage volume on their own
//	answers/<question>/<node>  the answer of a host
//
// A key under use, users, holds or calls grants a right, and has no lease. Only a transaction of the
// host that has the right, or a recorded proof, deletes it.
package shared

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/volume"
)

// MetaKey is the key of Meta.
const MetaKey = "meta"

// allKeys is the span of all keys of a cluster.
var allKeys = Span{Key: "\x00", End: "\xff"}

// LeaderKey is the key of the host that cleans up first. It has a lease, and grants no right.
const LeaderKey = "leader"

// RemovedKey is the key of Removed. Each removal of a volume overwrites it, and a watch delivers each
// of them. A key for each removed volume would stay for ever.
const RemovedKey = "removed"

// These are the first components of the other keys.
const (
	nodesPrefix    = "nodes/"
	infosPrefix    = "nodeinfo/"
	livesPrefix    = "live/"
	volumesPrefix  = "volumes/"
	externalPrefix = "external/"
	usesPrefix     = "use/"
	usersPrefix    = "users/"
	holdsPrefix    = "holds/"
	callsPrefix    = "calls/"
	tasksPrefix    = "tasks/"
	fencedPrefix   = "fenced/"
	wantedPrefix   = "wanted/"
	returnedPrefix = "returned/"
	statusPrefix   = "status/"
	noticesPrefix  = "notices/"
	questionPrefix = "questions/"
	answersPrefix  = "answers/"
	movesPrefix    = "moves/"
)

// NodeKey returns the key of a host.
func NodeKey(node string) string { return nodesPrefix + volume.KeyComponent(node) }

// Nodes returns the span of all hosts.
func Nodes() Span { return Prefix(nodesPrefix) }

// NodeInfoKey returns the key of a host's plugins.
func NodeInfoKey(node string) string { return infosPrefix + volume.KeyComponent(node) }

// NodeInfos returns the span of all hosts' plugins.
func NodeInfos() Span { return Prefix(infosPrefix) }

// LiveKey returns the key that shows that a host is alive.
func LiveKey(node string) string { return livesPrefix + volume.KeyComponent(node) }

// Lives returns the span of all live hosts.
func Lives() Span { return Prefix(livesPrefix) }

// VolumeKey returns the key of a volume's definition.
func VolumeKey(id string) string { return volumesPrefix + volume.KeyComponent(id) }

// Volumes returns the span of all definitions.
func Volumes() Span { return Prefix(volumesPrefix) }

// ExternalKey returns the key of a storage volume. The external id may have any length and any
// bytes, so the key contains its hash.
func ExternalKey(driver, external string) string { return externalPrefix + storageID(driver, external) }

// storageID returns the last two components of the keys of a storage volume.
func storageID(driver, external string) string {
	sum := sha256.Sum256([]byte(external))
	return volume.KeyComponent(driver) + "/" + hex.EncodeToString(sum[:])
}

// UseKey returns the key of the mode in force of a volume.
func UseKey(id string) string { return usesPrefix + volume.KeyComponent(id) }

// Uses returns the span of the modes in force of all volumes.
func Uses() Span { return Prefix(usesPrefix) }

// AllUsers returns the span of all users of all volumes. HoldIDs returns the volume and the host of
// such a key, in this order.
func AllUsers() Span { return Prefix(usersPrefix) }

// UserKey returns the key of one user of a volume.
func UserKey(id, node string) string {
	return usersPrefix + volume.KeyComponent(id) + "/" + volume.KeyComponent(node)
}

// Users returns the span of all users of a volume.
func Users(id string) Span { return Prefix(usersPrefix + volume.KeyComponent(id) + "/") }

// HoldKey returns the key of a host's hold on a volume.
func HoldKey(node, id string) string {
	return holdsPrefix + volume.KeyComponent(node) + "/" + volume.KeyComponent(id)
}

// HoldsOf returns the span of all holds of a host.
func HoldsOf(node string) Span { return Prefix(holdsPrefix + volume.KeyComponent(node) + "/") }

// Holds returns the span of all holds.
func Holds() Span { return Prefix(holdsPrefix) }

// CallKey returns the key of the controller call in flight for a volume.
func CallKey(id string) string { return callsPrefix + volume.KeyComponent(id) }

// Calls returns the span of all controller calls in flight.
func Calls() Span { return Prefix(callsPrefix) }

// TaskKey returns the key of a task about a volume for a host.
func TaskKey(node, id string) string {
	return tasksPrefix + volume.KeyComponent(node) + "/" + volume.KeyComponent(id)
}

// TasksOf returns the span of all tasks for a host.
func TasksOf(node string) Span { return Prefix(tasksPrefix + volume.KeyComponent(node) + "/") }

// FencedKey returns the key of the proof that a host with an incarnation cannot write any more.
func FencedKey(node string, incarnation uint64) string {
	return fencedPrefix + volume.KeyComponent(node) + "/" + strconv.FormatUint(incarnation, 10)
}

// MoveKey returns the key of the move of a volume.
func MoveKey(id string) string { return movesPrefix + volume.KeyComponent(id) }

// Moves returns the span of all moves.
func Moves() Span { return Prefix(movesPrefix) }

// Tasks returns the span of all tasks.
func Tasks() Span { return Prefix(tasksPrefix) }

// Proofs returns the span of all proofs that a host cannot write any more.
func Proofs(node string) Span { return Prefix(fencedPrefix + volume.KeyComponent(node) + "/") }

// WantedKey returns the key by which a host waits for a volume of a host that is gone.
func WantedKey(id, node string) string {
	return wantedPrefix + volume.KeyComponent(id) + "/" + volume.KeyComponent(node)
}

// AllWanted returns the span of all volumes that a host waits for. WantedIDs returns the volume and the
// waiting host of such a key.
func AllWanted() Span { return Prefix(wantedPrefix) }

// WantedIDs returns the volume and the host in the key of a Wanted. For any other key, ok is false.
func WantedIDs(key string) (id, node string, ok bool) {
	if !AllWanted().Contains(key) {
		return "", "", false
	}
	return HoldIDs(key)
}

// ReturnedKey returns the key by which a fenced host shows that it is back.
func ReturnedKey(node string) string { return returnedPrefix + volume.KeyComponent(node) }

// StatusKey returns the key of a host's status.
func StatusKey(node string) string { return statusPrefix + volume.KeyComponent(node) }

// Statuses returns the span of the status of all hosts.
func Statuses() Span { return Prefix(statusPrefix) }

// NoticeKey returns the key that changes with the definition of a volume in use.
func NoticeKey(id string) string { return noticesPrefix + volume.KeyComponent(id) }

// Notices returns the span of all notices.
func Notices() Span { return Prefix(noticesPrefix) }

// NoticeID returns the volume of a notice. For any other key, ok is false.
func NoticeID(key string) (id string, ok bool) {
	if !Notices().Contains(key) {
		return "", false
	}
	return LastID(key)
}

// QuestionKey returns the key of the question about a storage volume.
func QuestionKey(driver, external string) string {
	return questionPrefix + storageID(driver, external)
}

// Questions returns the span of all questions.
func Questions() Span { return Prefix(questionPrefix) }

// AnswerKey returns the key of a host's answer to a question.
func AnswerKey(question, node string) string {
	return answersPrefix + volume.KeyComponent(question) + "/" + volume.KeyComponent(node)
}

// Answers returns the span of all answers to a question.
func Answers(question string) Span {
	return Prefix(answersPrefix + volume.KeyComponent(question) + "/")
}

// UserIDs returns the volume and the host in the key of a user. For any other key, ok is false.
func UserIDs(key string) (id, node string, ok bool) { return HoldIDs(key) }

// After returns the span of the keys in s that follow a key.
func (s Span) After(key string) Span { return Span{Key: key + "\x00", End: s.End} }

// LastID returns the id in the last component of a key. For a key that no function of this package
// returned, ok is false.
func LastID(key string) (id string, ok bool) {
	return volume.ParseKeyComponent(key[strings.LastIndexByte(key, '/')+1:])
}

// HoldIDs returns the host and the volume in the key of a hold or of a task. For any other key, ok
// is false.
func HoldIDs(key string) (node, id string, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 {
		return "", "", false
	}

	node, okNode := volume.ParseKeyComponent(parts[1])
	id, okID := volume.ParseKeyComponent(parts[2])
	return node, id, okNode && okID
}

// ProvenIncarnation returns the incarnation in the key of a proof.
func ProvenIncarnation(key string) (uint64, error) {
	return strconv.ParseUint(key[strings.LastIndexByte(key, '/')+1:], 10, 64)
}
