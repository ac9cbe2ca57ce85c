package service

import "testing"

// TestNamesAny checks that namesAny finds a name only as a separate word.
func TestNamesAny(t *testing.T) {
	for line, want := range map[string]bool{
		"mounting data": true, "volume data: no": true, `id="data"`: true, "/csi/staging/data/x": true, "vol-1 is busy": true,
		"database is up": false, "metadata": false, "data-2 is busy": false, "vol-12": false, "no volume at all": false, "": false,
		"metadata of data": true,
	} {
		if got := namesAny(line, []string{"data", "vol-1"}); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}
