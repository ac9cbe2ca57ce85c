package doctor

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestDocumented checks that docs/doctor.md has a section for each kind of finding, and no other
// sections. The only exception is agent-down, which the client reports.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for line := range strings.Lines(string(page)) {
		if kind, ok := strings.CutPrefix(line, "### "); ok {
			sections = append(sections, strings.TrimSpace(kind))
		}
	}
	for _, kind := range Kinds {
		if !slices.Contains(sections, kind) {
			t.Errorf("docs/doctor.md has no section for %s", kind)
		}
	}
	for _, kind := range sections {
		if !slices.Contains(Kinds, kind) && kind != "agent-down" {
			t.Errorf("docs/doctor.md has a section for %s, which no rule finds", kind)
		}
	}
}
