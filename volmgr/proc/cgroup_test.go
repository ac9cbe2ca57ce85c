package proc_test

import (
	"slices"
	"testing"

	"github.com/volagent/volagent/volmgr/proc"
)

func TestParseCgroups(t *testing.T) {
	got := proc.ParseCgroups("3:cpu,cpuacct:/\n1:name=systemd:/system.slice/a:b.service\n0::/x y\nno group\n")
	want := []proc.Cgroup{
		{Hierarchy: "3", Controllers: "cpu,cpuacct", Path: "/"},
		{Hierarchy: "1", Controllers: "name=systemd", Path: "/system.slice/a:b.service"},
		{Hierarchy: "0", Path: "/x y"},
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %+v", got)
	}
	for i, systemd := range []bool{false, true, true} {
		if got[i].Systemd() != systemd || got[i].Unified() != (i == 2) {
			t.Errorf("%+v: systemd %t, unified %t", got[i], got[i].Systemd(), got[i].Unified())
		}
	}

	own, err := proc.OwnCgroups()
	if err != nil || len(own) == 0 {
		t.Errorf("own groups: %v, %v", own, err)
	}
	if _, err := proc.Cgroups(0); err == nil {
		t.Error("process 0 has control groups")
	}
}

func TestBootID(t *testing.T) {
	first, err := proc.BootID()
	second, _ := proc.BootID()
	if err != nil || len(first) != 36 || first != second {
		t.Errorf("%q, then %q, %v", first, second, err)
	}
}
