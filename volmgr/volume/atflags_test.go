package volume_test

import (
	"slices"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

func TestTargetFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		at   string
		fs   []string
		want []string
	}{
		"default":            {"", nil, []string{"nosuid", "nodev"}},
		"suid":               {"", []string{"suid"}, []string{"nodev"}},
		"dev":                {"", []string{"noatime", "dev"}, []string{"nosuid"}},
		"both in one text":   {"", []string{"suid,dev"}, nil},
		"the last one wins":  {"", []string{"suid", "nosuid"}, []string{"nosuid", "nodev"}},
		"and so it does":     {"", []string{"nodev,dev"}, []string{"nosuid"}},
		"in a quoted value":  {"", []string{`context="a,suid,dev"`}, []string{"nosuid", "nodev"}},
		"other words":        {"", []string{"suiddir", "devices", "nosuidx"}, []string{"nosuid", "nodev"}},
		"of the directory":   {"nosuid,noexec", nil, []string{"nosuid", "nodev", "noexec"}},
		"of it alone":        {"nosuid", []string{"suid", "dev"}, []string{"nosuid"}},
		"times of directory": {"relatime", nil, []string{"nosuid", "nodev", "relatime"}},
	} {
		if got := (volume.Claim{Terms: volume.Terms{AtFlags: tt.at}}).TargetFlags(tt.fs); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestPrivate(t *testing.T) {
	for name, tt := range map[string]struct {
		c    volume.Claim
		want bool
	}{
		"its target alone":     {volume.Claim{Target: "/c/p/per-alloc/a/v"}, false},
		"a directory":          {volume.Claim{Target: "/c/p/per-alloc/a/v", Terms: volume.Terms{At: "/srv"}}, true},
		"a container":          {volume.Claim{Target: "/c/p/per-alloc/a/v", Terms: volume.Terms{Owner: volume.Owner{Kind: volume.OwnerRuntime}}}, true},
		"adopted, by its path": {volume.Claim{Target: "/c/p/per-alloc/a/.p/v"}, true},
	} {
		if got := tt.c.Private(); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
		req := volume.Request{Terms: volume.Terms{At: tt.c.At, Owner: tt.c.Owner}}
		if got := req.Private(); name != "adopted, by its path" && got != tt.want {
			t.Errorf("%s: asked for, %t", name, got)
		}
	}
	if got := volume.TargetDirs("/c/p/per-alloc/a/.p/v"); !slices.Equal(got, []string{"/c/p/per-alloc/a/.p", "/c/p/per-alloc/a"}) {
		t.Errorf("directories of a private target: %v", got)
	}
	if got := volume.TargetDirs("/c/p/per-alloc/a/v"); !slices.Equal(got, []string{"/c/p/per-alloc/a"}) {
		t.Errorf("directories of a target: %v", got)
	}
}
