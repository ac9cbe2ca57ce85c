package command

import (
	"strings"
	"testing"
)

// TestBrief checks that brief keeps the beginning and the end of a long message.
func TestBrief(t *testing.T) {
	long := "cannot detach: " + strings.Repeat("é", 2000) + "; the agent continues"
	got := brief(long)
	if n := len([]rune(got)); n > longestMessage+3 || !strings.HasPrefix(got, "cannot detach: ") || !strings.HasSuffix(got, "é; the agent continues") {
		t.Errorf("%d characters: %s", n, got)
	}
	for _, whole := range []string{"short", strings.Repeat("a line\n", 500)} {
		if brief(whole) != whole {
			t.Errorf("%.20q is cut", whole)
		}
	}
}
