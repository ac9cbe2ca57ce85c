package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDevicePath checks the result of devicePath for each block device of this host.
func TestDevicePath(t *testing.T) {
	numbers, err := filepath.Glob("/sys/dev/block/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range numbers {
		path := devicePath(filepath.Base(n))
		if _, err := os.Stat("/sys/class/block/" + filepath.Base(path)); filepath.Dir(path) == "/dev" && err != nil {
			t.Errorf("%s is %q: %v", n, path, err)
		}
	}
	if got := devicePath("0:0"); got != "" {
		t.Errorf("a device that does not exist is %q", got)
	}
}
