package spec_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/spec"
)

// The volumes that the documentation shows are right as they stand.
func TestDocumentedFilesParse(t *testing.T) {
	text, err := os.ReadFile("../../docs/volume-files.md")
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]int{}
	for _, m := range regexp.MustCompile("(?s)```(yaml|hcl|json)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		format, file := m[1], m[2]
		if !strings.HasPrefix(file, "id") {
			continue // a part of one
		}
		tried[format]++
		if _, err := spec.Parse("docs."+format, []byte(file)); err != nil {
			t.Errorf("%v in\n%s", err, file)
		}
	}
	if tried["yaml"] < 5 || tried["hcl"] < 1 {
		t.Errorf("found only %v", tried)
	}
}
