package csitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Twist is a behavior of real plugins that differs from the expected behavior, or that demands more
// from the caller than the spec does. A Twist changes the effect of a call. If the fault has no
// effect, its Twist does nothing.
type Twist string

// These are the values of Twist.
const (
	Straight Twist = ""

	// With the following twists, NodeStage and NodePublish mount a FUSE file system instead of the
	// volume.
	Dead   Twist = "dead"   // the FUSE daemon has ended: lstat succeeds, and open returns ENOTCONN
	Hung   Twist = "hung"   // the FUSE daemon does not answer while the fault exists, and then ends
	Served Twist = "served" // the FUSE daemon is a process in the plugin's process group, and runs until the unmount

	Remade  Twist = "remade"  // NodeStage and NodeUnstage remove the staging directory, and NodeStage creates a new one
	Direct  Twist = "direct"  // NodePublish mounts the volume itself and ignores the staging path
	Locked  Twist = "locked"  // NodePublish creates a target with mode 000 and mounts nothing
	Kept    Twist = "kept"    // NodeUnpublish does not remove the target
	Strict  Twist = "strict"  // NodeUnpublish of a missing target fails with Internal
	Severs  Twist = "severs"  // NodeUnstage also unmounts the targets of the volume
	NoDots  Twist = "no-dots" // a call fails with InvalidArgument if its path contains a hidden directory
	Argv    Twist = "argv"    // a call fails with Internal if the staging path is in the argv of any process
	Sharing Twist = "sharing" // NodeStage and NodeUnstage fail unless the staging directory is in a shared mount

	// With the following twists, the answer does not match the effect.
	Short    Twist = "short"    // the answer reports half of the real capacity
	Nameless Twist = "nameless" // the answer does not contain the id of the created object
	Unready  Twist = "unready"  // the answer reports no snapshot as ready
	Endless  Twist = "endless"  // the list never ends, because its first page follows every page
)

// twisted maps each twist to the methods to which it applies.
var twisted = map[Twist][]string{
	Dead:    {NodeStage, NodePublish},
	Hung:    {NodeStage, NodePublish},
	Served:  {NodeStage, NodePublish},
	Remade:  {NodeStage, NodeUnstage},
	Direct:  {NodePublish},
	Locked:  {NodePublish},
	Kept:    {NodeUnpublish},
	Strict:  {NodeUnpublish},
	Severs:  {NodeUnstage},
	NoDots:  {NodeStage, NodePublish, NodeUnpublish, NodeUnstage, NodeStats, NodeExpand},
	Argv:    {NodeStage, NodePublish, NodeUnpublish, NodeUnstage},
	Sharing: {NodeStage, NodeUnstage},

	Short:    {CreateVolume, ControllerExpand, NodeExpand},
	Nameless: {CreateVolume, CreateSnapshot, CreateGroupSnapshot},
	Unready:  {CreateSnapshot, GetSnapshot, ListSnapshots, CreateGroupSnapshot, GetGroupSnapshot},
	Endless:  {ListVolumes, ListSnapshots, ListHealth},
}

// knows reports whether a twist applies to a method.
func (t Twist) knows(method string) bool {
	return t == Straight || slices.Contains(twisted[t], method)
}

// demands returns an error if the caller does not meet a demand of the twist. Some real plugins
// have such demands, although the spec does not.
func (o options) demands(staging, target string) error {
	switch o.twist {
	case NoDots:
		for _, path := range []string{staging, target} {
			if strings.Contains(path, "/.") {
				return status.Errorf(codes.InvalidArgument, "the path %s leads through a hidden directory", path)
			}
		}
	case Argv:
		if pid := inArgv(staging); pid != "" {
			return status.Errorf(codes.Internal, "process %s seems to serve %s already", pid, staging)
		}
	case Sharing:
		shared, err := inShared(filepath.Dir(staging))
		if err != nil {
			return err
		}
		if !shared {
			return status.Errorf(codes.Internal, "%s is not in a shared mount", staging)
		}
	case Strict:
		if _, err := os.Lstat(target); errors.Is(err, unix.ENOENT) {
			return status.Errorf(codes.Internal, "the target %s does not exist", target)
		}
	}

	return nil
}

// inArgv returns the id of a process whose argv contains path, or an empty string if there is no
// such process.
func inArgv(path string) string {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // Glob fails only for an invalid pattern
	for _, line := range lines {
		raw, err := os.ReadFile(line)
		if path != "" && err == nil && strings.Contains(string(raw), path) {
			return filepath.Base(filepath.Dir(line))
		}
	}

	return ""
}

// inShared reports whether a directory is in a mount with shared propagation.
func inShared(dir string) (bool, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}

	longest, shared := -1, false
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 7 {
			return false, fmt.Errorf("cannot read the mount table: %q", line)
		}

		// If two mounts have the same path, the later line of the table belongs to the mount on
		// top.
		at := strings.TrimSuffix(f[4], "/") + "/"
		if len(at) >= longest && strings.HasPrefix(dir+"/", at) {
			longest, shared = len(at), strings.HasPrefix(f[6], "shared:")
		}
	}

	return shared, nil
}

// mountTwisted mounts the file system of a twist at path instead of the volume. It returns false if
// the twist has no file system of its own.
func (p *Plugin) mountTwisted(ctx context.Context, path string) (bool, error) {
	o := optionsOf(ctx)
	switch o.twist {
	case Dead:
		return true, mountDead(path)
	case Served:
		return true, mountServed(path)
	case Hung:
		dev, err := mountHung(path)
		if err != nil {
			return true, err
		}
		if !p.enter() {
			return true, dev.Close()
		}

		go func() {
			defer p.work.Done()
			p.hang(o.fault)
			_ = dev.Close() // now the mount is dead
		}()

		return true, nil
	default:
		return false, nil
	}
}

// remade replaces an empty directory with a new one.
func remade(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o750)
}

// sever lazily unmounts the targets of a volume, even if they are in use.
func sever(targets []string) error {
	var errs []error
	for _, path := range targets {
		if isMount(path) {
			errs = append(errs, unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
	}
	return errors.Join(errs...)
}
