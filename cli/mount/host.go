package mount

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/fstab"
)

// Host contains the functions with which the commands mount and umount access the host. Tests
// replace them.
type Host struct {
	// Mounts returns the content of /proc/self/mountinfo.
	Mounts func() ([]byte, error)

	// Unmount calls umount2(2).
	Unmount func(path string, flags int) error

	// Table returns the contents of libmount's table, utab. libmount uses it for facts about mounts
	// that the kernel does not store.
	Table func() ([]byte, error)

	// Remember adds a mount to libmount's table. The mount is a bind mount of source at dir.
	Remember func(ctx context.Context, source, dir, options string) error

	// Root is a prefix for the paths of systemd's files.
	Root string

	// Systemctl runs systemctl(1).
	Systemctl func(ctx context.Context, args ...string) error

	// Booting reports whether systemd is still booting the host.
	Booting func(ctx context.Context) bool
}

// Under returns the path of a file of the host below Root.
func (h Host) Under(path string) string { return filepath.Join(h.Root, path) }

// utab is the default path of libmount's table. If libmount was built with a different path, volctl
// finds no entries in the table, which is harmless.
const utab = "/run/mount/utab"

// programWithin limits the run time of systemctl(1) and mount(8). mount(8) may hang together with
// the storage, because it examines the mount that it adds to its table.
const programWithin = 5 * time.Second

// ThisHost returns the Host that acts on the real host.
func ThisHost() Host {
	return Host{
		Mounts:   func() ([]byte, error) { return os.ReadFile("/proc/self/mountinfo") },
		Unmount:  unix.Unmount,
		Table:    func() ([]byte, error) { return os.ReadFile(utab) },
		Remember: remember, Root: "/", Systemctl: systemctl, Booting: booting,
	}
}

// systemctl runs systemctl(1). The error contains the program's output.
func systemctl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "systemctl", args...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run systemctl %s: %w: %s", args[0], err, said(out))
	}
	return nil
}

// The paths are absolute, because mount(8) does not set PATH for its helpers.
const (
	mountProgram     = "/bin/mount"
	systemctlProgram = "/bin/systemctl"
)

// booting reports whether systemd is still booting the host, which includes the time in which
// systemd waits for a mount (see is-system-running in systemctl(1)). Without systemd, booting
// returns false.
func booting(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, programWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, systemctlProgram, "is-system-running")
	cmd.WaitDelay = time.Second
	out, _ := cmd.Output() // systemctl returns an error in every state except "running"
	state := strings.TrimSpace(string(out))
	return state == "initializing" || state == "starting"
}

// remember runs mount(8) to add an existing mount to libmount's table. With -f, mount(8) does
// everything except the mount itself. With -i, mount(8) does not call a helper.
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

// said joins the lines of a program's output.
func said(out []byte) string {
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; ")
}

// remembered reports whether libmount's table makes umount(8) call umount.csi for the mount.
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

// umountHelper is the mount option that makes umount(8) call umount.csi.
const umountHelper = "helper=csi"
