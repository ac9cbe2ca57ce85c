package request

import (
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/mounts"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// CheckFlags returns an error for mount flags with which the new volume could never be mounted.
func CheckFlags(v store.Volume, caps []*csi.VolumeCapability) error {
	for _, c := range caps {
		a, err := parseAccess(c)
		if err != nil {
			return err
		}

		switch {
		case a.Block:
		case v.Type == store.TypeDirectory && len(a.Flags.Fs) > 0:
			return csierr.Invalidf("mount flag %q belongs to a filesystem, and a volume of type %q has none of its own; it takes ro, nosuid, nodev, noexec, noatime, nodiratime, nosymfollow and their opposites",
				a.Flags.Fs[0], store.TypeDirectory)
		case v.Type == store.TypeImage:
			if err := tryOptions(v.FSType, a.Flags.Fs); err != nil {
				return err
			}
		}
	}

	return nil
}

// tryOptions lets the kernel parse the options of a filesystem without mounting it. If the kernel
// is too old to parse options before the mount, wrong options cause an error only at the mount.
// This concerns kernels before 5.17 for ext4, 5.6 for xfs and 6.8 for btrfs.
func tryOptions(fsType string, options []string) error {
	if len(options) == 0 {
		return nil
	}

	ctx, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EPERM):
		return nil // a later call that needs the filesystem reports the error
	case err != nil:
		return err
	}

	// closing cannot lose data, because the descriptor is only a configuration
	defer func() { _ = unix.Close(ctx) }()
	return mounts.SetOptions(ctx, fsType, options)
}
