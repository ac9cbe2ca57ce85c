package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// NoCoreDumps prevents core dumps of this process, because a core dump would contain secrets. The
// prctl setting that it makes works even if the core limit is raised or the core pattern is a pipe.
// A plugin does not inherit the setting when it executes its own program. For plugins, the agent
// only sets the soft limit of core dumps to 0, and a plugin may raise the limit again.
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
