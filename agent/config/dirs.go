package config

import "path/filepath"

// Dirs holds the directories that an agent does not share with any other agent.
type Dirs struct{ Data, Runtime string }

// MountRoot returns the parent directory of all mounts in a data dir.
func MountRoot(dataDir string) string { return filepath.Join(dataDir, "csi") }

// Dirs returns the directories that the agent does not share with any other agent.
func (c *Config) Dirs() Dirs { return Dirs{Data: c.DataDir, Runtime: c.RuntimeDir} }

// MountRoot returns the parent directory of all mounts.
func (c *Config) MountRoot() string { return MountRoot(c.DataDir) }

// StateFile returns the path of the state database.
func (c *Config) StateFile() string { return filepath.Join(c.DataDir, "state.db") }

// KeyFile returns the path of the key that encrypts secrets. The agent uses this file only if
// systemd passes it no credential with a key.
func (c *Config) KeyFile() string { return filepath.Join(c.DataDir, "keys", "secrets.key") }
