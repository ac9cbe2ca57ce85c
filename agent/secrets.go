package agent

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/secret"
)

// keyFile is where the key is that seals secrets, if no credential is.
func (c Config) keyFile() string { return filepath.Join(c.DataDir, "keys", "secrets.key") }

// newSecrets makes what reads and seals the secrets of volumes.
func (a *agent) newSecrets() secret.Resolver {
	return secret.Resolver{Sealer: &secret.Sealer{
		KeyFile: a.c.keyFile(),
		Made: func(path string) {
			a.log.Info("made the key that seals secrets; what it sealed is lost without it, so keep a copy, apart from those of the data dir", "file", path)
		},
	}}
}

// noCoreDumps keeps secrets, which pass through this process and into plugins,
// out of core dumps. Of this process none is made at all, whatever the limit and
// wherever cores are piped to; that ends where a plugin's own program begins, but
// not the limit, which is the soft one, so that a plugin may raise it again.
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
