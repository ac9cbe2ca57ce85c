package agent

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/secret"
)

// keyFile returns the path of the key that seals secrets, for hosts without a credential for it.
func (c Config) keyFile() string { return filepath.Join(c.DataDir, "keys", "secrets.key") }

// newSecrets returns the resolver that reads and seals the secrets of volumes.
func (a *agent) newSecrets() secret.Resolver {
	return secret.Resolver{Sealer: &secret.Sealer{
		KeyFile: a.c.keyFile(),
		Made: func(path string) {
			a.log.Info("made the key that seals secrets; what it sealed is lost without it, so keep a copy, apart from those of the data dir", "file", path)
		},
	}}
}

// noCoreDumps keeps secrets, which pass through this process and into plugins, out of core dumps.
// This process makes no core dump at all, regardless of the limit and of the kernel's core pattern.
// That setting does not apply to a plugin's own program. The limit does, but it is the soft limit,
// so a plugin may raise it again.
func noCoreDumps() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot keep secrets out of core dumps: %w", err)
	}

	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return fmt.Errorf("cannot read the limit of core dumps: %w", err)
	}

	limit.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return fmt.Errorf("cannot keep plugins' secrets out of core dumps: %w", err)
	}

	return nil
}
