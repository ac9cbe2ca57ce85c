package shared

import (
	"slices"
	"testing"
)

// TestNextHookHost checks the order in which hosts ask their hooks.
func TestNextHookHost(t *testing.T) {
	for name, c := range map[string]struct {
		hosts []string
		want  []string // of the turns one after another
	}{
		"no host has hooks":          {nil, []string{"", ""}},
		"only the elected host":      {[]string{"m"}, []string{"m", "m"}},
		"the elected host is first":  {[]string{"z", "m", "a"}, []string{"m", "a", "z", "m"}},
		"the elected host has none":  {[]string{"z", "a"}, []string{"a", "z", "a"}},
		"one other host":             {[]string{"a"}, []string{"a", "a"}},
		"a host that is named twice": {[]string{"a", "a", "b"}, []string{"a", "b", "a"}},
	} {
		last, got := "", []string(nil)
		for range c.want {
			last = NextHookHost("m", c.hosts, last)
			got = append(got, last)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := NextHookHost("m", []string{"a", "b"}, "gone"); got != "a" {
		t.Errorf("after a host that is gone: %q", got)
	}
}
