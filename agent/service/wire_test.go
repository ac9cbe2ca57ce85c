package service

import (
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// TestWireNames checks that the constants of the API have the same values as the domain's
// constants, because the conversions copy these values unchanged.
func TestWireNames(t *testing.T) {
	for _, pair := range [][2]string{
		{api.StateFree, string(volume.StateFree)}, {api.StateMounting, string(volume.StateMounting)}, {api.StateMounted, string(volume.StateMounted)},
		{api.StateDegraded, string(volume.StateDegraded)}, {api.StateDetaching, string(volume.StateDetaching)}, {api.StateStuck, string(volume.StateStuck)},

		{api.ClaimPending, string(volume.Pending)}, {api.ClaimUnpublishing, string(volume.Unpublishing)}, {api.ClaimNodeDetached, string(volume.NodeDetached)},
		{api.ClaimControllerDetached, string(volume.ControllerDetached)},

		{api.PluginStarting, plugin.Starting}, {api.PluginReady, plugin.Ready}, {api.PluginUnhealthy, plugin.Unhealthy},
		{api.PluginBackingOff, plugin.BackingOff}, {api.PluginStopped, plugin.Stopped}, {api.PluginFailed, plugin.Failed},

		{api.OwnerNone, volume.OwnerNone}, {api.OwnerPID, volume.OwnerPID}, {api.OwnerUnit, volume.OwnerUnit}, {api.OwnerMount, volume.OwnerMount},
		{api.OwnerRuntime, volume.OwnerRuntime},
		{api.OwnerRunning, string(volume.LifeRunning)}, {api.OwnerGone, string(volume.LifeGone)}, {api.OwnerUnknown, string(volume.LifeUnknown)},

		{api.OutcomeCreated, volume.Created}, {api.OutcomeRegistered, volume.Registered}, {api.OutcomeUpdated, volume.Updated}, {api.OutcomeModified, volume.Modified},
		{api.OutcomeExpanded, volume.Grown}, {api.OutcomeExpanding, volume.Growing}, {api.OutcomeWithdrawn, volume.GivenUp}, {api.OutcomeUnchanged, volume.Unchanged},

		{api.CauseHalted, string(volume.CauseHalted)}, {api.CausePlugin, string(volume.CausePlugin)}, {api.CauseForeign, string(volume.CauseForeign)},
		{api.CauseHung, string(volume.CauseHung)}, {api.CauseWatch, string(volume.CauseWatch)}, {api.CauseLeftover, string(volume.CauseLeftover)},
		{api.CauseExpand, string(volume.CauseExpand)}, {api.CauseOwner, string(volume.CauseOwner)}, {api.CauseDown, string(volume.CauseDown)},
		{api.CauseInvalid, string(volume.CauseInvalid)}, {api.CauseBackoff, string(volume.CauseBackoff)},

		{api.RetryBackoff, string(volume.RetryBackoff)}, {api.RetryChange, string(volume.RetryChange)}, {api.RetryNever, string(volume.RetryNever)},
		{api.Yes, string(volume.SafetyYes)}, {api.No, string(volume.SafetyNo)}, {api.Unknown, string(volume.SafetyUnknown)},
		{api.CodeHost, volume.CodeHost}, {api.CodeUnverified, volume.CodeUnverified},
	} {
		if pair[0] != pair[1] {
			t.Errorf("the API says %q, and the domain says %q", pair[0], pair[1])
		}
	}
}
