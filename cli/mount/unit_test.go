package mount

import "testing"

// TestMountUnit checks that UnitName returns the same names as systemd-escape --path
// --suffix=mount.
func TestMountUnit(t *testing.T) {
	for path, want := range map[string]string{
		"/":                    "-.mount",
		"/srv/data":            "srv-data.mount",
		"//srv/./data/":        "srv-data.mount",
		"/srv/my-data":         `srv-my\x2ddata.mount`,
		"/.hidden/.x":          `\x2ehidden-.x.mount`,
		"/srv/a b\t\\ä":        `srv-a\x20b\x09\x5c\xc3\xa4.mount`,
		"/srv/data_1:2@3,4":    `srv-data_1:2\x403\x2c4.mount`,
		"/var/lib/postgres/16": "var-lib-postgres-16.mount",
	} {
		if got := UnitName(path); got != want {
			t.Errorf("%q: got %s, want %s", path, got, want)
		}
	}
}
