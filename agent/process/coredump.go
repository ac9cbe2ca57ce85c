package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NoCoreDumps prevents core dumps of this process, because they would contain secrets. The kernel's
// setting applies to this process regardless of the limit and of the core pattern. The setting does
// not apply to a plugin's own program. For plugins there is only the soft limit, which a plugin may
// raise again.
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
