package lab

import (
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// StartSAN starts a simulated SAN. At the end of the test, it must not have seen a violation. The SAN is
// permissive: it attaches a volume also where it should refuse, so that no refusal hides a mistake of the hosts.
func StartSAN(t testing.TB) *san.SAN {
	t.Helper()
	// The directory of a host has a short path, as the socket of the SAN needs it.
	s, err := san.Start(harness.NewHost(t).Mkdir("san"))
	if err != nil {
		t.Fatal(err)
	}
	s.SetPermissive(true)
	t.Cleanup(func() {
		for _, v := range s.Violations() {
			t.Errorf("the SAN has seen a violation: %s", v)
		}
		if t.Failed() {
			for _, e := range s.Events() {
				t.Log(e)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
