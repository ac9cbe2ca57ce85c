package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoctorKindsAreDocumented checks that docs/doctor.md describes each kind of finding that
// volctl itself reports.
func TestDoctorKindsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "doctor.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range aloneKinds {
		if !strings.Contains(string(page), "\n### "+kind+"\n") {
			t.Errorf("docs/doctor.md has no section for %s", kind)
		}
	}
}
