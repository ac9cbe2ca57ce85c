package mount

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

// Host is the part of the host that mount and umount use themselves. Tests make their own.
type Host struct {
	// Mounts returns the content of /proc/self/mountinfo.
	Mounts func() ([]byte, error)

	// Unmount is umount2(2).
	Unmount func(path string, flags int) error

	// Table returns the content of utab. There libmount stores the facts about mounts that the
	// kernel does not keep.
	Table func() ([]byte, error)

	// Remember enters a mount in that table: a bind of source at dir, with options.
	Remember func(ctx context.Context, source, dir, options string) error

	// Root is the prefix of the paths of systemd's files.
	Root string

	// Systemctl runs systemctl(1).
	Systemctl func(ctx context.Context, args ...string) error

	// Booting reports whether the host is still booting, according to systemd.
	Booting func(ctx context.Context) bool
}

// Under returns the path of one of the host's files.
func (h Host) Under(path string) string { return filepath.Join(h.Root, path) }

// utab is the default path of libmount's table. If libmount was built with another path, the
// only effect is that volctl finds no entries.
const utab = "/run/mount/utab"

// programWithin bounds the programs that a mount runs: systemctl(1), and mount(8), which examines
// the mount that it enters.
const programWithin = 5 * time.Second

// ThisHost returns the real host.
func ThisHost() Host {
	return Host{
		Mounts:   func() ([]byte, error) { return os.ReadFile("/proc/self/mountinfo") },
		Unmount:  unix.Unmount,
		Table:    func() ([]byte, error) { return os.ReadFile(utab) },
		Remember: remember, Root: "/", Systemctl: systemctl, Booting: booting,
	}
}

// systemctl runs systemctl(1). The error contains its output.
func systemctl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run systemctl %s: %w: %s", args[0], err, said(out))
	}
	return nil
}

// mount(8) sets no PATH for its helpers, so these paths are absolute.
const (
	mountProgram     = "/bin/mount"
	systemctlProgram = "/bin/systemctl"
)

// booting asks systemd. The boot is not over while it waits for a mount of its own (see
// is-system-running in systemctl(1)). Without systemd, booting returns false.
func booting(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, programWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, systemctlProgram, "is-system-running")
	cmd.WaitDelay = time.Second
	out, _ := cmd.Output() // the command fails for every state but "running"
	state := strings.TrimSpace(string(out))
	return state == "initializing" || state == "starting"
}

// remember has mount(8) enter an existing mount in libmount's table. With -f, mount(8) does
// everything except the mount itself. With -i, it calls no helper.
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

// said joins a program's output into one line.
func said(out []byte) string {
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; ")
}

// remembered reports whether libmount's table tells umount(8) to call umount.csi for a mount.
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

// umountHelper is the option that tells umount(8) to call umount.csi.
const umountHelper = "helper=csi"
