package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/fstab"
	"golang.org/x/sys/unix"
)

// Host is what mount and umount look at and do by themselves; a test makes its own.
type Host struct {
	// Mounts is the content of /proc/self/mountinfo.
	Mounts func() ([]byte, error)
	// Unmount is umount2(2).
	Unmount func(path string, flags int) error
	// Table is the content of libmount's table of what the kernel does not know of
	// mounts, which is called utab.
	Table func() ([]byte, error)
	// Remember enters a mount there: a bind of source at dir, with options.
	Remember func(ctx context.Context, source, dir, options string) error
	// Root is what paths of systemd's files begin with.
	Root string
	// Systemctl runs systemctl(1).
	Systemctl func(ctx context.Context, args ...string) error
	// Booting reports whether systemd says that the host is not up yet.
	Booting func(ctx context.Context) bool
}

// under is where a file of the host's is.
func (h Host) under(path string) string { return filepath.Join(h.Root, path) }

// utab is libmount's table; where libmount was built to have it elsewhere, mounts
// are only not remembered.
const utab = "/run/mount/utab"

// programWithin bounds the programs that a mount runs: mount(8), which looks at the
// mount that it enters, and systemctl(1).
const programWithin = 5 * time.Second

func thisHost() Host {
	return Host{
		Mounts:   func() ([]byte, error) { return os.ReadFile("/proc/self/mountinfo") },
		Unmount:  unix.Unmount,
		Table:    func() ([]byte, error) { return os.ReadFile(utab) },
		Remember: remember, Root: "/", Systemctl: systemctl, Booting: booting,
	}
}

// systemctl runs systemctl(1); its words are the error's.
func systemctl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run systemctl %s: %w: %s", args[0], err, said(out))
	}
	return nil
}

// mount(8) gives its helpers no PATH to find a program by.
const (
	mountProgram     = "/bin/mount"
	systemctlProgram = "/bin/systemctl"
)

// booting asks systemd. As long as a mount of the boot's own is waited for, the boot is
// not over, see is-system-running in systemctl(1). A host without systemd has no answer.
func booting(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, programWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, systemctlProgram, "is-system-running")
	cmd.WaitDelay = time.Second
	out, _ := cmd.Output() // what is not "running" is an exit code
	state := strings.TrimSpace(string(out))
	return state == "initializing" || state == "starting"
}

// remember has mount(8) enter a mount that is made: with -f it does all but the
// mounting, and with -i it calls no helper.
func remember(ctx context.Context, source, dir, options string) error {
	ctx, cancel := context.WithTimeout(ctx, programWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, mountProgram, "-i", "-f", "--bind", "-o", options, "--", source, dir)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run mount(8): %w: %s", err, said(out))
	}
	return nil
}

// said are the lines that a program printed, in one.
func said(out []byte) string {
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; ")
}

// remembered reports whether libmount's table has umount(8) call umount.csi for a
// directory.
func remembered(table []byte, dir string, of mounted) bool {
	for line := range strings.Lines(string(table)) {
		fields := map[string]string{}
		for _, f := range fstab.Fields(line) {
			name, value, _ := strings.Cut(f, "=")
			fields[name] = fstab.Unescape(value)
		}
		if fields["TARGET"] == dir && fields["SRC"] == of.source && fields["ROOT"] == of.root &&
			strings.Contains(","+fields["OPTS"]+",", ","+umountHelper+",") {
			return true
		}
	}
	return false
}

// umountHelper is the option that has umount(8) call umount.csi.
const umountHelper = "helper=csi"
