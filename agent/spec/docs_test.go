package spec_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/spec"
)

// TestDocumentedFilesParse checks that Parse accepts every volume file that the documentation
// shows.
func TestDocumentedFilesParse(t *testing.T) {
	var text []byte
	for _, page := range []string{"volume-files.md", "from-swarm.md"} {
		one, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, one...)
	}
	tried := map[string]int{}
	for _, m := range regexp.MustCompile("(?s)```(yaml|hcl|json)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		format, file := m[1], m[2]
		if !strings.HasPrefix(file, "id") && !strings.Contains(file, "\nexternal_id:") {
			continue // the example is incomplete, or is a plugin file
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
