// Package proc reads procfs: processes, control groups, mount tables and the boot id (proc(5)). It
// makes no decisions.
//
// Users choose many of the names in these files. Therefore the readers use bounded memory. The
// parsers return the original form of every name that the kernel escapes.
package proc

import (
	"fmt"
	"os"
	"strings"
)

// BootID returns the random id that the kernel gave to the current boot.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot read the boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
