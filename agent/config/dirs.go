package config

import "path/filepath"

// Dirs are the directories that an agent uses alone.
type Dirs struct{ Data, Runtime string }

// MountRoot returns the directory of all mounts below a data dir.
func MountRoot(dataDir string) string { return filepath.Join(dataDir, "csi") }

// Dirs returns the directories that the agent uses alone.
func (c *Config) Dirs() Dirs { return Dirs{Data: c.DataDir, Runtime: c.RuntimeDir} }

// MountRoot returns the directory of all mounts.
func (c *Config) MountRoot() string { return MountRoot(c.DataDir) }

// StateFile returns the path of the state database.
func (c *Config) StateFile() string { return filepath.Join(c.DataDir, "state.db") }

// KeyFile returns the path of the key that seals secrets, for hosts without a credential for it.
func (c *Config) KeyFile() string { return filepath.Join(c.DataDir, "keys", "secrets.key") }
