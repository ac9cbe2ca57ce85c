package loopdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/volmgr/proc"
)

// Surroundings contains the kernel's loop devices and their mounts, read once for many volumes.
type Surroundings struct {
	// Loops contains the names of the loop devices of each volume id. The id is the directory name
	// of the backing file.
	Loops  map[string][]string
	Mounts []mounts.MountEntry // the mounts of filesystems on loop devices
}

// LookAround reads the kernel's loop devices and their mounts.
func LookAround() (Surroundings, error) {
	look := Surroundings{Loops: map[string][]string{}}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return look, err
	}

	for _, f := range files {
		if backing, err := os.ReadFile(f); err == nil {
			id := filepath.Base(filepath.Dir(string(backing)))
			look.Loops[id] = append(look.Loops[id], strings.Split(f, "/")[3])
		}
	}

	look.Mounts, err = mounts.ReadMounts(proc.OwnMounts, "/dev/loop", fmt.Sprintf(" %d:", LoopMajor))
	return look, err
}
