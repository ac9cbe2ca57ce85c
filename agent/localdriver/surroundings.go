package localdriver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/volmgr/proc"
)

// surroundings is the kernel's state of the loop devices, read once for all volumes.
type surroundings struct {
	loops  map[string][]string // device names by volume id, the directory of the backing file
	mounts []mounts.MountEntry // of filesystems on loop devices
}

func lookAround() (surroundings, error) {
	look := surroundings{loops: map[string][]string{}}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return look, err
	}

	for _, f := range files {
		if backing, err := os.ReadFile(f); err == nil {
			id := filepath.Base(filepath.Dir(string(backing)))
			look.loops[id] = append(look.loops[id], strings.Split(f, "/")[3])
		}
	}

	look.mounts, err = mounts.ReadMounts(proc.OwnMounts, "/dev/loop", fmt.Sprintf(" %d:", loopMajor))
	return look, err
}
