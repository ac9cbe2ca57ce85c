package store

import (
	"os"

	"github.com/volagent/volagent/agent/localdriver/mounts"
)

// Unusable returns the reason why the metadata of a volume cannot be used, or "".
func (s *volumes) Unusable(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.broken[id]; err != nil {
		return err.Error()
	}
	return ""
}

// finishGrowing records the size of an image that became longer before a crash.
func (s *volumes) finishGrowing(v Volume) Volume {
	if v.Type != TypeImage {
		return v
	}

	st, err := mounts.StatPath(s.DataPath(v))
	if err != nil || !st.IsRegular() || int64(st.Size) <= v.Capacity {
		return v // a missing or short file is reported when the volume is used
	}

	s.Log.Info("a volume has grown", "volume_id", v.ID, "from_bytes", v.Capacity, "bytes", st.Size)
	v.Capacity = int64(st.Size)
	if err := WriteVolume(s.Path(DirVolumes, v.ID), v); err != nil {
		s.Log.Warn("cannot record that a volume has grown; the next start does so", "volume_id", v.ID, "error", err)
	}

	return v
}

// MakeDirectory makes the data directory of a directory volume. Like the root of a new filesystem,
// it belongs to the user who runs the driver (root), and all users may enter it. The 0700
// directories above it keep other users out until it is mounted elsewhere.
func MakeDirectory(dir string) error {
	path := DataIn(dir)
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o755); err != nil { // regardless of the umask
		return err
	}
	return SyncDir(path)
}
