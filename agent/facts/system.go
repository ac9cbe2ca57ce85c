package facts

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/agent/systemd"
)

// system returns facts about systemd, mount namespaces and the mount helper.
func (c *collector) system(ctx context.Context, helper bool) doctor.System {
	s := doctor.System{Namespace: c.o.Host.Namespace(), Unit: systemd.OwnUnit()}
	if info, err := os.Stat("/proc/1/ns/mnt"); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			s.Init = st.Ino
		}
	}

	if s.Unit != "" {
		if set, err := c.o.Systemd.Settings(ctx, s.Unit); err == nil {
			s.State = set.FileState
		}
	}

	if helper {
		s.Helper = mountHelper(ctx)
	}

	return s
}

// helpers are the programs that mount(8) and umount(8) run for volumes.
var helpers = []string{"/sbin/mount.csi", "/sbin/umount.csi"}

// mountHelper returns the first problem with the helpers, or "" if there is none.
func mountHelper(ctx context.Context) string {
	for _, path := range helpers {
		program, err := filepath.EvalSymlinks(path)
		switch {
		case os.IsNotExist(err):
			return "there is no " + path
		case err != nil:
			return path + " cannot be used: " + err.Error()
		case filepath.Base(program) != "volctl":
			return path + " is " + program + ", and not volctl"
		}

		version, err := versionOf(ctx, program)
		if err != nil {
			return path + " cannot be run: " + err.Error()
		}
		if version != api.Version {
			return path + " is of version " + strings.TrimSpace(version) + ", and the agent of " + api.Version
		}
	}

	return ""
}

// versionWithin limits the time in which a program must print its version.
const versionWithin = 5 * time.Second

// versionOf runs a program with --version and returns the version that it prints.
func versionOf(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionWithin)
	defer cancel()

	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}

	return strings.TrimPrefix(strings.TrimSpace(string(out)), "volctl "), nil
}
