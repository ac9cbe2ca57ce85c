package csiclient_test

import (
	"reflect"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
)

// TestEachCapability checks that every capability sets exactly one field of Caps, and that no two
// capabilities set the same field. It covers all capabilities of the spec, and the two that CSI
// 1.13 removed.
func TestEachCapability(t *testing.T) {
	setBy := map[string]string{}
	one := func(name string, answers map[string]any) {
		t.Helper()
		f := newFake(t)
		all := map[string]any{
			"GetPluginCapabilities":     pluginCaps(csi.PluginCapability_Service_CONTROLLER_SERVICE),
			"ControllerGetCapabilities": controllerCaps(), "NodeGetCapabilities": nodeCaps(),
		}
		for method, answer := range answers {
			all[method] = answer
		}
		f.answers(all)
		info, err := f.client(t, csiclient.Options{}).Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var set []string
		for field, value := range reflect.ValueOf(info.Caps).Fields() {
			if value.Bool() {
				set = append(set, field.Name)
			}
		}
		if len(set) != 1 {
			t.Errorf("%s sets %v", name, set)
			return
		}
		if other := setBy[set[0]]; other != "" {
			t.Errorf("%s and %s set %s", name, other, set[0])
		}
		setBy[set[0]] = name
	}
	for n, name := range csi.ControllerServiceCapability_RPC_Type_name {
		if n != 0 {
			one("controller "+name, map[string]any{"ControllerGetCapabilities": controllerCaps(csi.ControllerServiceCapability_RPC_Type(n))})
		}
	}
	for n, name := range csi.NodeServiceCapability_RPC_Type_name {
		if n != 0 {
			one("node "+name, map[string]any{"NodeGetCapabilities": nodeCaps(csi.NodeServiceCapability_RPC_Type(n))})
		}
	}
	one("controller 11", map[string]any{"ControllerGetCapabilities": controllerCaps(11)})
	one("node 4", map[string]any{"NodeGetCapabilities": nodeCaps(4)})
	one("plugin topology", map[string]any{"GetPluginCapabilities": pluginCaps(csi.PluginCapability_Service_CONTROLLER_SERVICE,
		csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)})
	one("plugin groups", map[string]any{
		"GetPluginCapabilities": pluginCaps(csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE),
		"GroupControllerGetCapabilities": &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{}, {
			Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
				Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}}}}},
	})
	offline := pluginCaps(csi.PluginCapability_Service_CONTROLLER_SERVICE)
	offline.Capabilities = append(offline.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_OFFLINE}}})
	one("plugin offline", map[string]any{"GetPluginCapabilities": offline})
	if want := reflect.TypeFor[plugin.Caps]().NumField(); len(setBy) != want {
		t.Errorf("%d fields of %d are set by a capability: %v", len(setBy), want, setBy)
	}
}
