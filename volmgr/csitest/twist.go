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

// Twist is a way in which real plugins do a call otherwise than one would
// expect, or ask more of the caller than the spec does. It is part of the
// effect: a fault whose effect is not done has no twist either.
type Twist string

// The twists.
const (
	Straight Twist = ""

	// Stage and publish, instead of the volume, mount a FUSE file system.
	Dead   Twist = "dead"   // its daemon is gone: lstat succeeds, open gives ENOTCONN
	Hung   Twist = "hung"   // its daemon answers nothing as long as the fault is there, then it is gone
	Served Twist = "served" // its daemon is a process of the plugin's process group, and lives until it is unmounted

	Remade  Twist = "remade"  // stage and unstage remove the staging directory; stage makes another one
	Direct  Twist = "direct"  // publish mounts the volume itself, whatever is staged
	Locked  Twist = "locked"  // publish makes a target with mode 000 and mounts nothing
	Kept    Twist = "kept"    // unpublish leaves the target behind
	Strict  Twist = "strict"  // unpublish of a target that is not there is an Internal error
	Severs  Twist = "severs"  // unstage takes the volume's targets away as well
	NoDots  Twist = "no-dots" // a path through a hidden directory is InvalidArgument
	Argv    Twist = "argv"    // a staging path that stands in any process's argv is an Internal error
	Sharing Twist = "sharing" // stage and unstage fail unless the staging directory lies in a shared mount

	// The answer is not that of what was done.
	Short    Twist = "short"    // half the capacity
	Nameless Twist = "nameless" // what was made has no id
	Unready  Twist = "unready"  // no snapshot is ready to be used
	Endless  Twist = "endless"  // after each page of a list comes the first one
)

// twisted are the methods that know a twist.
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

// knows tells whether a method has the twist.
func (t Twist) knows(method string) bool {
	return t == Straight || slices.Contains(twisted[t], method)
}

// demands are what some plugins want beyond the spec.
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

// inArgv is the id of a process that has path in its argv, "" if none has.
func inArgv(path string) string {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is good
	for _, line := range lines {
		raw, err := os.ReadFile(line)
		if path != "" && err == nil && strings.Contains(string(raw), path) {
			return filepath.Base(filepath.Dir(line))
		}
	}
	return ""
}

// inShared tells whether the mount that a directory lies in is shared.
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
		// Of two at one place, the later line is the upper mount.
		at := strings.TrimSuffix(f[4], "/") + "/"
		if len(at) >= longest && strings.HasPrefix(dir+"/", at) {
			longest, shared = len(at), strings.HasPrefix(f[6], "shared:")
		}
	}
	return shared, nil
}

// mountTwisted mounts what a twist wants at path instead of the volume. It
// reports false if the twist wants none of it.
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
			_ = dev.Close() // the mount is dead from here on
		}()
		return true, nil
	default:
		return false, nil
	}
}

// remade puts another directory in the place of an empty one.
func remade(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o750)
}

// sever takes away what is mounted at the targets of a volume, used or not.
func sever(targets []string) error {
	var errs []error
	for _, path := range targets {
		if isMount(path) {
			errs = append(errs, unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
	}
	return errors.Join(errs...)
}
