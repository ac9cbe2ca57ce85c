package config

import "path/filepath"

// Dirs holds the directories that no other agent may use at the same time.
type Dirs struct{ Data, Runtime string }

// MountRoot returns the parent directory of all mounts in a data dir.
func MountRoot(dataDir string) string { return filepath.Join(dataDir, "csi") }

// Dirs returns the directories that no other agent may use at the same time.
func (c *Config) Dirs() Dirs { return Dirs{Data: c.DataDir, Runtime: c.RuntimeDir} }

// MountRoot returns the parent directory of all mounts.
func (c *Config) MountRoot() string { return MountRoot(c.DataDir) }

// StateFile returns the path of the state database.
func (c *Config) StateFile() string { return filepath.Join(c.DataDir, "state.db") }

// KeyFile returns the path of the key that encrypts secrets. It is used on a host that has no
// credential with the key.
func (c *Config) KeyFile() string { return filepath.Join(c.DataDir, "keys", "secrets.key") }
