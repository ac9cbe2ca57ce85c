package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDoctorKindsAreDocumented checks that docs/doctor.md describes the findings that volctl makes
// without the agent.
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
