package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NoCoreDumps keeps secrets, which pass through this process and into plugins, out of core dumps.
// This process makes no core dump at all, regardless of the limit and of the kernel's core pattern.
// That setting does not apply to a plugin's own program. The limit does, but it is the soft limit,
// so a plugin may raise it again.
func NoCoreDumps() error {
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
