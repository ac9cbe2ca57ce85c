package shared_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// keyConstant matches a constant in keys.go with the first component of a key.
var keyConstant = regexp.MustCompile(`(?m)^(?:const |\t)\w+(?:Prefix|Key)\s+= "([a-z]+/?)"$`)

// TestDrawnKeys checks that the package comment and the drawing in docs/design/cluster.md show every
// key.
func TestDrawnKeys(t *testing.T) {
	code, err := os.ReadFile("keys.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/design/cluster.md")
	if err != nil {
		t.Fatal(err)
	}

	found := keyConstant.FindAllStringSubmatch(string(code), -1)
	if len(found) < 16 {
		t.Errorf("only %d keys were found", len(found))
	}
	for _, m := range found {
		if !strings.Contains(string(code), "\n//\t"+m[1]) {
			t.Errorf("the package comment does not show %s", m[1])
		}
		if !strings.Contains(string(page), "── "+m[1]) {
			t.Errorf("docs/design/cluster.md does not show %s", m[1])
		}
	}
}
