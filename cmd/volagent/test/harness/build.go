package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BinDir is the directory that contains volagent and volctl, both built from this source tree.
var BinDir string

// build builds volagent and volctl from this source tree and copies them to the given directory.
// All test folders share one cache of the programs, because linking takes several seconds.
func build(to string) error {
	cache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("cannot find the cache for the programs: %w", err)
	}
	cache = filepath.Join(cache, "volagent", "test-programs")
	if raceDetector {
		cache += "-race"
	}
	return buildCached(cache, to)
}

// buildCached updates the programs in the cache directory and copies them. It holds a lock on the
// cache throughout, so that no other process replaces the programs during the copy.
func buildCached(cache, to string) (err error) {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	unlock, err := lockDir(cache, func() {})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()

	for _, program := range []string{"volagent", "volagent-etcd", "volctl"} {
		// If a program in the cache is up to date, go build does not link it again.
		args := []string{"build", "-buildvcs=false", "-o", cache + "/"}
		if raceDetector && program == "volagent" {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, "github.com/volagent/volagent/cmd/"+program)...).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot build: %w\n%s", err, out)
		}
		if out, err := exec.Command("cp", filepath.Join(cache, program), to).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot copy: %w\n%s", err, out)
		}
	}
	return nil
}
