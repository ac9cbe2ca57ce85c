package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/shared"
)

// TestVersions checks which versions of etcd the store uses. TestOldEtcd of the cluster tests runs an
// etcd that is too old.
func TestVersions(t *testing.T) {
	tooOld := func(version string) string {
		return "this etcd is not supported: its version is " + version + ", and at least 3.5.18 is needed"
	}
	unreadable := func(version string) string { return `its version "` + version + `" cannot be read` }
	for _, c := range []struct{ version, refusal string }{
		{"3.5.18", ""}, {"3.5.18-rc.1", ""}, {"3.5.19", ""}, {"3.5.100", ""}, {"3.6.0", ""}, {"3.7.3", ""}, {"3.8.0-alpha.0", ""}, {"4.0.0", ""},
		{"3.5.17", tooOld("3.5.17")}, {"3.5.9", tooOld("3.5.9")}, {"3.4.37", tooOld("3.4.37")}, {"2.3.8", tooOld("2.3.8")}, {"3.5", tooOld("3.5")},
		{"", unreadable("")}, {"three", unreadable("three")}, {"3.x.1", unreadable("3.x.1")}, {"v3.7.3", unreadable("v3.7.3")},
	} {
		err := checkVersion(c.version)
		if c.refusal == "" {
			if err != nil {
				t.Errorf("version %q is refused: %v", c.version, err)
			}
			continue
		}
		if !errors.Is(err, shared.ErrUnsupported) || !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("version %q: the error is %v, want %q", c.version, err, c.refusal)
		}
	}
}
