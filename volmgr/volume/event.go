package volume

import (
	"fmt"
	"time"

	"github.com/volagent/volagent/volmgr/call"
)

// Event describes one transition in words.
type Event struct {
	Type    EventType
	Volume  string
	Alloc   string
	Plugin  string
	Part    string // the part of the plugin that the event concerns, if the plugin has several parts
	Step    string // the step that caused the event, as its Kind or RPC; empty if no step caused it
	Message string
}

// EventType is the kind of an event, as the API, the event files and the agent's log name it. The
// table in docs/troubleshooting.md explains each type.
type EventType string

// A claim reached a new state. ClaimEvent returns these types.
const (
	EventClaimPending            EventType = "claim-pending"
	EventClaimMounted            EventType = "claim-mounted"
	EventClaimUnpublishing       EventType = "claim-unpublishing"
	EventClaimNodeDetached       EventType = "claim-node-detached"
	EventClaimControllerDetached EventType = "claim-controller-detached"
	EventClaimDetached           EventType = "claim-detached"
)

// The agent refused a claim, or ends a claim without a request to detach it.
const (
	// EventClaimRefused is the only type of event that a caller can cause without limit.
	EventClaimRefused EventType = "claim-refused"

	EventClaimWithdrawn EventType = "claim-withdrawn"
	EventOwnerGone      EventType = "owner-gone"
)

// A step succeeded or failed.
const (
	EventAttached        EventType = "attached"
	EventDetached        EventType = "detached"
	EventStaged          EventType = "staged"
	EventUnstaged        EventType = "unstaged"
	EventPublished       EventType = "published"
	EventUnpublished     EventType = "unpublished"
	EventBound           EventType = "bound"
	EventUnbound         EventType = "unbound"
	EventOwned           EventType = "owned"
	EventUnmounted       EventType = "unmounted"
	EventExpanded        EventType = "expanded"
	EventNodeExpanded    EventType = "node-expanded"
	EventExpandFailed    EventType = "expand-failed"
	EventStepFailed      EventType = "step-failed"
	EventStepInterrupted EventType = "step-interrupted"
	EventWarning         EventType = "warning"
)

// The hold of this host on a shared volume changed.
const (
	EventHoldAcquired EventType = "hold-acquired"
	EventHoldGivenUp  EventType = "hold-given-up"
	EventHoldLost     EventType = "hold-lost"
	EventHoldTrusted  EventType = "hold-trusted"  // used after a reboot without an answer of the cluster
	EventHoldConflict EventType = "hold-conflict" // several hosts use the volume against its mode

	EventVolumeLeaving    EventType = "volume-leaving"    // a person moves the volume from this host to another one
	EventVolumeReserved   EventType = "volume-reserved"   // a person moves the volume to this host
	EventReservationEnded EventType = "reservation-ended" // without a hold of this host
)

// The part of this host in its cluster changed.
const (
	EventNodeRegistered     EventType = "node-registered"
	EventClusterReachable   EventType = "cluster-reachable"
	EventClusterUnreachable EventType = "cluster-unreachable"
)

// This host fences a host that is gone, or another host does so for it.
const (
	EventNodeFencing EventType = "node-fencing" // the fencing begins
	EventNodeFenced  EventType = "node-fenced"  // a proof shows that the whole host cannot write
	EventTakenOver   EventType = "taken-over"   // the hold of a lost host was dropped
	EventQuarantined EventType = "quarantined"  // this host has lost a volume, and cannot unmount it
)

// A command for a volume succeeded or failed, or the agent changed the record itself.
const (
	EventCreated         EventType = "created"
	EventCreateFailed    EventType = "create-failed"
	EventRegistered      EventType = "registered"
	EventUpdated         EventType = "updated"
	EventDeleted         EventType = "deleted"
	EventDeleteFailed    EventType = "delete-failed"
	EventDeregistered    EventType = "deregistered"
	EventModified        EventType = "modified"
	EventModifyFailed    EventType = "modify-failed"
	EventExpandBegun     EventType = "expand-begun"
	EventExpandWithdrawn EventType = "expand-withdrawn"
	EventShared          EventType = "shared"
	EventUnshared        EventType = "unshared"
	EventRestored        EventType = "restored"
	EventVolumeAdopted   EventType = "volume-adopted"
	EventHealthChanged   EventType = "health-changed"
)

// A snapshot was made or deleted at the plugin.
const (
	EventSnapshotCreated EventType = "snapshot-created"
	EventSnapshotFailed  EventType = "snapshot-failed"
	EventSnapshotDeleted EventType = "snapshot-deleted"
)

// A container runtime got or lost its name for a volume.
const (
	EventRuntimeCreated EventType = "runtime-created"
	EventRuntimeRemoved EventType = "runtime-removed"
)

// A plugin or one of its parts changed. PluginEvent returns the types for the states.
const (
	EventPluginStarting    EventType = "plugin-starting"
	EventPluginReady       EventType = "plugin-ready"
	EventPluginUnhealthy   EventType = "plugin-unhealthy"
	EventPluginBackingOff  EventType = "plugin-backing-off"
	EventPluginFailed      EventType = "plugin-failed"
	EventPluginStopped     EventType = "plugin-stopped"
	EventPluginWarning     EventType = "plugin-warning"
	EventPluginTested      EventType = "plugin-tested"
	EventPluginTestCleaned EventType = "plugin-test-cleaned"
)

// The agent or its host changed its state.
const (
	EventAgentStarted  EventType = "agent-started"
	EventAgentStopped  EventType = "agent-stopped"
	EventNodeDraining  EventType = "node-draining"
	EventNodeUndrained EventType = "node-undrained"
	EventHostGoingDown EventType = "host-going-down"
)

// Check reports a type that no event has.
func (t EventType) Check() error {
	switch t {
	case EventClaimPending, EventClaimMounted, EventClaimUnpublishing, EventClaimNodeDetached,
		EventClaimControllerDetached, EventClaimDetached,
		EventClaimRefused, EventClaimWithdrawn, EventOwnerGone,
		EventAttached, EventDetached, EventStaged, EventUnstaged, EventPublished,
		EventUnpublished, EventBound, EventUnbound, EventOwned, EventUnmounted, EventExpanded,
		EventNodeExpanded, EventExpandFailed, EventStepFailed, EventStepInterrupted,
		EventWarning,
		EventHoldAcquired, EventHoldGivenUp, EventHoldLost, EventHoldTrusted, EventHoldConflict,
		EventVolumeLeaving, EventVolumeReserved, EventReservationEnded,
		EventNodeRegistered, EventClusterReachable, EventClusterUnreachable,
		EventNodeFencing, EventNodeFenced, EventTakenOver, EventQuarantined,
		EventCreated, EventCreateFailed, EventRegistered, EventUpdated, EventDeleted,
		EventDeleteFailed, EventDeregistered, EventModified, EventModifyFailed,
		EventExpandBegun, EventExpandWithdrawn, EventShared, EventUnshared, EventRestored, EventVolumeAdopted,
		EventHealthChanged,
		EventSnapshotCreated, EventSnapshotFailed, EventSnapshotDeleted,
		EventRuntimeCreated, EventRuntimeRemoved,
		EventPluginStarting, EventPluginReady, EventPluginUnhealthy, EventPluginBackingOff,
		EventPluginFailed, EventPluginStopped, EventPluginWarning, EventPluginTested,
		EventPluginTestCleaned,
		EventAgentStarted, EventAgentStopped, EventNodeDraining, EventNodeUndrained,
		EventHostGoingDown:
		return nil
	}
	return Errorf(ErrInvalid, "unknown type of event %q", string(t)).WithHint("docs/troubleshooting.md lists the types of events")
}

// ClaimEvent returns the type of the event for a claim that has reached a state.
func ClaimEvent(s ClaimState) EventType { return EventType("claim-" + string(s)) }

// PluginEvent returns the type of the event for a plugin that has reached a state.
func PluginEvent(state string) EventType { return EventType("plugin-" + state) }

// events returns the events for a step and for the differences between the two records.
func events(before, now Record, a Action, out Outcome) []Event {
	id := now.Volume.ID
	var evs []Event
	add := func(typ EventType, alloc, format string, args ...any) {
		evs = append(evs, Event{Type: typ, Volume: id, Alloc: alloc, Plugin: now.Volume.PluginID, Step: string(a.Kind), Message: fmt.Sprintf(format, args...)})
	}

	switch {
	case out.Err != nil && now.Volume.Expansion.Refused != before.Volume.Expansion.Refused:
		add(EventExpandFailed, "", "not expanded to %s: %s", Size(a.Size), out.Err.Error())
	case out.Err != nil:
		add(EventStepFailed, a.Alloc, "%s", out.Err.Error())
	case out.Warning != "":
		add(EventWarning, a.Alloc, "%s: %s", a.Kind, out.Warning)
	}

	if out.Err == nil {
		switch a.Kind {
		case call.ControllerPublish:
			add(EventAttached, "", "attached to node %q", a.NodeID)
		case call.ControllerUnpublish:
			add(EventDetached, "", "detached from node %q", a.NodeID)
		case call.NodeStage:
			add(EventStaged, "", "staged at %s", a.Path)
		case call.NodeUnstage:
			add(EventUnstaged, "", "unstaged from %s", a.Path)
		case call.NodePublish:
			add(EventPublished, a.Alloc, "published at %s", a.Path)
		case call.NodeUnpublish:
			add(EventUnpublished, a.Alloc, "unpublished from %s", a.Path)
		case call.ControllerExpand:
			add(EventExpanded, "", "the storage has %s", Size(now.Volume.Capacity))
		case call.NodeExpand:
			add(EventNodeExpanded, "", "expanded to %s at %s", Size(a.Size), a.Path)
		case Acquire:
			add(EventHoldAcquired, "", "this host holds the volume in mode %s", now.Node.Hold.Access)
		case Trust:
			add(EventHoldTrusted, "", "the cluster does not answer after a reboot; this host uses its hold of %s (boot: trust-local)", now.Node.Hold.Since.Format(time.RFC3339))
		case GiveUp:
			add(EventHoldGivenUp, "", "this host has given up the volume")
		case Bind:
			add(EventBound, a.Alloc, "bound at %s", a.Path)
		case Own:
			add(EventOwned, a.Alloc, "the root of %s has %s", a.Path, now.Claims[a.Alloc].Own.Here())
		case Unmount:
			add(EventUnmounted, a.Alloc, "unmounted %s on the host without the plugin; the call to the plugin is pending", a.Path)
		case Unbind:
			add(EventUnbound, a.Alloc, "unbound from %s", a.Path)
		}
	}

	for _, c := range moved(before, now) {
		switch n, ok := now.Claims[c.Alloc]; {
		case !ok:
			add(EventClaimDetached, c.Alloc, "detached after %s", c.State)
		case n.State != c.State:
			add(ClaimEvent(n.State), c.Alloc, "%s → %s", c.State, n.State)
		}
	}

	return evs
}

// moved returns the claims that disappeared or changed their state between two records, oldest
// first. It sorts only these claims, because a record may have thousands of others.
func moved(before, now Record) []Claim {
	some := map[string]Claim{}
	for alloc, c := range before.Claims {
		if n, ok := now.Claims[alloc]; !ok || n.State != c.State {
			some[alloc] = c
		}
	}

	before.Claims = some
	return before.Ordered()
}
