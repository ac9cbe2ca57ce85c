// Package machine identifies the machine on which a program runs. The agent and volagent-etcd use it, so
// that the cluster can recognise programs on the same machine.
package machine

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/untrusted"
)

// These files identify the installation and the hardware of a host. The second one does not exist on
// every machine, and only root can read it.
const (
	machineIDFile = "/etc/machine-id"
	productFile   = "/sys/class/dmi/id/product_uuid"
)

// mostIDBytes is the maximum size of these files. They contain a UUID and a newline.
const mostIDBytes = 128

// Identity identifies this machine to a cluster. A value that the machine does not have is empty.
func Identity() shared.Machine {
	return shared.Machine{ID: firstLine(machineIDFile), DMI: firstLine(productFile)}
}

// firstLine returns the contents of a small file, or "" if the file cannot be read.
func firstLine(path string) string {
	raw, err := untrusted.ReadFile(path, mostIDBytes)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// Directory identifies a directory on this machine until the next boot. A copy of the directory has
// another identity. The result is empty if the directory cannot be read.
func Directory(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}
