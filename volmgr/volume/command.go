package volume

import (
	"fmt"
	"regexp"
	"strings"
)

// plain is a word that a shell takes as it is.
var plain = regexp.MustCompile(`^[A-Za-z0-9@%+=:,./_-]+$`)

// Command is a command for people to run, its texts quoted for a shell where
// they need it: an alloc's id may hold spaces.
func Command(format string, args ...any) string {
	quoted := make([]any, len(args))
	for i, arg := range args {
		if s, ok := arg.(string); ok && !plain.MatchString(s) {
			arg = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
		quoted[i] = arg
	}
	return fmt.Sprintf(format, quoted...)
}
