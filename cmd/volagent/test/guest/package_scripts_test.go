package guest_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestPackageVersion checks the package versions that the script derives from the output of git
// describe. dpkg must sort these versions in the order of the commits.
func TestPackageVersion(t *testing.T) {
	const function = `eval "$(sed -n '/^package_version()/,/^}/p' ../../../../scripts/package)"; SOURCE_DATE_EPOCH=$1; package_version "$2"`
	last := ""
	for _, tt := range []struct{ version, epoch, want string }{
		{"dev", "0", "0~19700101000000.dev"},
		{"c120110", "1700000000", "0~20231114221320.c120110"},
		{"0ff1ce0", "1700000001", "0~20231114221321.0ff1ce0"},
		{"1234567-dirty", "1700000002", "0~20231114221322.1234567+dirty"},
		{"0.9.0", "1700000003", "0.9.0"},
		{"1.0.0-rc1", "1700000004", "1.0.0~rc1"},
		{"1.0.0-rc1-3-gabc1234", "1700000005", "1.0.0~rc1+3.abc1234"},
		{"1.0.0-rc2", "1700000006", "1.0.0~rc2"},
		{"1.0.0", "1700000007", "1.0.0"},
		{"1.0.0-12-gabc1234", "1700000008", "1.0.0+12.abc1234"},
		{"1.0.1", "1700000009", "1.0.1"},
		{"1.10.0", "1700000010", "1.10.0"},
	} {
		out, err := exec.Command("bash", "-c", function, "bash", tt.epoch, tt.version).CombinedOutput()
		got := strings.TrimSpace(string(out))
		if err != nil || got != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.version, got, err, tt.want)
		}
		if _, err := exec.LookPath("dpkg"); err == nil && last != "" {
			if err := exec.Command("dpkg", "--compare-versions", last, "lt", got).Run(); err != nil {
				t.Errorf("dpkg does not sort %q before %q", last, got)
			}
		}
		last = got
	}
	for _, bad := range []string{"", "a b", "1.0/2", "v1;rm"} {
		if out, err := exec.Command("bash", "-c", function, "bash", "0", bad).CombinedOutput(); err == nil {
			t.Errorf("%q is made %q", bad, out)
		}
	}
}

// TestPackageGuards checks the script that runs when the package is removed. The script reads the
// output of `volagent inspect --json` and records the guarded own directories. A later purge must
// make these directories writable again.
func TestPackageGuards(t *testing.T) {
	const printed = `{
  "volumes": [
    {
      "id": "guards",
      "guards": [
        "/srv/a b",
        "/srv/c & \"d\" \\e"
      ],
      "claims": [
        "/srv/d"
      ]
    },
    {
      "guards": [
        "/srv/e"
      ]
    }
  ]
}
`
	cmd := exec.Command("sh", "-c", `eval "$(grep '^guards()' ../../../../packaging/scripts/preremove)"; guards`)
	cmd.Stdin = strings.NewReader(printed)
	out, err := cmd.CombinedOutput()
	if want := "guard /srv/a b\nguard /srv/c & \"d\" \\e\nguard /srv/e\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
}
