package spec

import (
	"strings"
	"testing"
)

// TestDeriveID checks the ids for external ids of different storage systems.
func TestDeriveID(t *testing.T) {
	none := func(string) bool { return false }
	for external, want := range map[string]string{
		"vol-0abc":                       "vol-0abc",
		"pvc_1.2":                        "pvc_1.2",
		"projects/p/zones/z/disks/d":     "projects-p-zones-z-disks-d-7f456511",
		"nfs.example#share//x# ":         "nfs.example-share-x-",
		"-rf":                            "rf-",
		"..":                             "volume-",
		"größe":                          "gr-e-",
		"":                               "volume-e3b0c442",
		strings.Repeat("a/", 80) + "end": "-end-",
	} {
		got := DeriveID(external, none)
		if !strings.Contains(got, want) || CheckVolumeID(got) != nil || len(got) > derivedLength {
			t.Errorf("%q became %q, not %q", external, got, want)
		}
	}

	a := DeriveID("vol", func(id string) bool { return id == "vol" })
	b := DeriveID("vol", func(id string) bool { return id == "vol" || id == a })
	if !strings.HasPrefix(a, "vol-") || b != a+"-2" {
		t.Errorf("taken ids became %q and %q", a, b)
	}
}

// FuzzDeriveID checks that every external id gives a valid id that is not taken, and that different
// external ids give different ids.
func FuzzDeriveID(f *testing.F) {
	for _, s := range []string{"", ".", "a/b", "a-b", "vol-1", "\xff", "ä", strings.Repeat("x", 200), "-", "a b\n"} {
		f.Add(s, "a-b")
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		used := map[string]bool{"a-b": true}
		taken := func(id string) bool { return used[id] }
		a := DeriveID(one, taken)
		if used[a] || CheckVolumeID(a) != nil {
			t.Errorf("%q became %q", one, a)
		}
		used[a] = true
		if b := DeriveID(two, taken); used[b] || CheckVolumeID(b) != nil {
			t.Errorf("%q became %q after %q", two, b, a)
		}
		if again := DeriveID(one, func(id string) bool { return id == "a-b" }); again != a {
			t.Errorf("%q became %q and %q", one, a, again)
		}
	})
}
