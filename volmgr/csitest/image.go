package csitest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// imageSize is the size, in bytes, of a file that contains a file system.
const imageSize = 16 << 20

// isImage reports whether a volume has a file system of its own for its files.
func (c Config) isImage(id string) bool {
	return c.Images != "" && strings.HasPrefix(id, c.Images)
}

// mountImage mounts the file system of a volume. The first mount also creates the file system.
func (s *store) mountImage(id, path string) error {
	v, err := s.get(id)
	if err != nil {
		return err
	}
	if v.Usable < imageSize {
		v.Usable = imageSize
		if err := s.make(v); err != nil {
			return err
		}
	}

	image, err := s.block(id)
	if err != nil {
		return err
	}
	if !isExt4(image) {
		if err := mkfs(image); err != nil {
			return err
		}
	}

	dev, err := s.device(id, false)
	if err != nil {
		return err
	}
	if err := unix.Mount(dev, path, "ext4", 0, ""); err != nil {
		return fmt.Errorf("cannot mount %s at %s: %w", dev, path, err)
	}

	return nil
}

// isExt4 reports whether a file contains an ext4 file system. It checks the field s_magic of struct
// ext4_super_block.
func isExt4(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	var magic [2]byte
	_, err = f.ReadAt(magic[:], 1024+0x38)
	return errors.Join(err, f.Close()) == nil && binary.LittleEndian.Uint16(magic[:]) == 0xEF53
}

func mkfs(image string) error {
	cmd := exec.Command("mkfs.ext4", "-q", "-F", "-E", "nodiscard", image)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot make a file system: %w: %s", err, out)
	}
	return nil
}

// DeviceOf returns the loop device of a volume, or an empty string if the volume has no loop
// device.
func DeviceOf(cfg Config, id string) string {
	s := store{dir: cfg.Base + "/volumes"}
	return loopOf(s.path(id, "block.img"))
}
