package supervisor

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/supervisor/runner"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/plugin"
)

// TestWordsForApart checks the message for each reason why a plugin and the host do not share
// mounts. The message must state the consequence, and a fix that fits the way in which the plugin
// is run.
func TestWordsForApart(t *testing.T) {
	fix := func(def *plugin.Definition) runner.Fix {
		return newRunner(&supervised{env: newEnv(Options{})}, def).Traits().Fix
	}
	const root = "/var/lib/volagent/csi/nfs"
	for name, tt := range map[string]struct {
		apart  mount.Apart
		def    plugin.Definition
		shared bool
		want   []string
		not    string
	}{
		"container": {
			mount.Apart{NotOut: true}, plugin.Definition{Container: &plugin.Container{}}, true,
			[]string{"this host does not see the mounts that the plugin makes below " + root, "with rshared"}, "make-rshared",
		},
		"container, host not shared": {
			mount.Apart{NotIn: true, NotOut: true}, plugin.Definition{Container: &plugin.Container{}}, false,
			[]string{"do not see each other's mounts", "mount --bind /var/lib/volagent/csi /var/lib/volagent/csi && mount --make-rshared /var/lib/volagent/csi"}, "into the container",
		},
		"unit": {
			mount.Apart{NotOut: true}, plugin.Definition{Unit: "nfs.service"}, true,
			[]string{"take out of nfs.service", "PrivateMounts=", "ProtectSystem="}, "make-rshared",
		},
		"socket, another directory": {
			mount.Apart{OtherPath: true}, plugin.Definition{Socket: "/s"}, false,
			[]string{"another directory", "-v " + root + ":" + root + ":rshared"}, "make-rshared",
		},
		"exec, inwards": {
			mount.Apart{NotIn: true}, plugin.Definition{Exec: &plugin.Exec{}}, true,
			[]string{"the plugin does not see the mounts that this host makes below " + root, "unshare --propagation shared"}, "make-rshared",
		},
	} {
		got := describeApart(tt.apart, root, fix(&tt.def), tt.shared)
		for _, w := range tt.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q lacks %q", name, got, w)
			}
		}
		if strings.Contains(got, tt.not) {
			t.Errorf("%s: %q says %q", name, got, tt.not)
		}
	}
	for def, want := range map[*plugin.Definition]string{
		{Container: &plugin.Container{}}: "--network host",
		{Unit: "nfs.service"}:            "PrivateNetwork= and NetworkNamespacePath= out of nfs.service",
		{Socket: "/s"}:                   "its unit without PrivateNetwork=",
		{Builtin: "local"}:               "start it in the host's network namespace",
	} {
		if got := networkWarning(fix(def)); !strings.Contains(got, want) || !strings.Contains(got, "hang when the plugin is restarted") {
			t.Errorf("%s: %q", def.Runner(), got)
		}
	}
}
