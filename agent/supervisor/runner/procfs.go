package runner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Environ returns the value of a variable in the environment with which a process was started. It
// returns "" if the environment lacks the variable.
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

// LogDirOf returns the directory of the log file to which a plugin's process writes its output.
// This directory is below the data dir of the agent that started the process. The result is "" if
// the process writes to no log file.
func LogDirOf(pid int) string {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", pid))
	if err != nil || !strings.HasPrefix(filepath.Base(to), "plugin.log") {
		return ""
	}
	return filepath.Dir(to)
}
