package runner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Environ returns one variable of the environment with which a process started, or "".
func Environ(pid int, name string) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}

	for entry := range bytes.SplitSeq(data, []byte{0}) {
		if value, ok := bytes.CutPrefix(entry, []byte(name+"=")); ok {
			return string(value)
		}
	}

	return ""
}

// LogDirOf returns the directory of the log to which a plugin's process writes its output. The
// agent that started the process opened that file in its own data dir. The result is empty if the
// output goes elsewhere.
func LogDirOf(pid int) string {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", pid))
	if err != nil || !strings.HasPrefix(filepath.Base(to), "plugin.log") {
		return ""
	}
	return filepath.Dir(to)
}
