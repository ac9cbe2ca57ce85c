package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/cli/command"
)

// FuzzArguments checks that Normalise only reorders arguments and adds dashes. It must not lose an
// argument, or change the arguments after "--".
func FuzzArguments(f *testing.F) {
	for _, text := range []string{
		"volume status data", "-o json volume list", "volume detach data web -force", "volume detach -- -force -x", "-", "--", "volume -abc --x=y", "mount -o ro,x a /b", "-socket /x version", "\x00", "volume create -f -",
	} {
		f.Add(strings.ReplaceAll(text, " ", "\x00"))
	}
	_, root := testRoot()
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\x00")
		got := command.Normalise(root, slices.Clone(args))
		plain := func(all []string) []string {
			all = slices.Clone(all)
			for i, arg := range all {
				all[i] = strings.TrimLeft(arg, "-")
			}
			slices.Sort(all)
			return all
		}
		if a, b := plain(args), plain(got); !slices.Equal(a, b) {
			t.Errorf("%q became %q", args, got)
		}
		end := slices.Index(args, "--")
		value := end > 0 && strings.HasPrefix(args[end-1], "-") // "--" may be the value of a flag
		if end >= 0 && !value && !slices.Equal(args[end:], got[len(got)-len(args)+end:]) {
			t.Errorf("%q became %q", args, got)
		}
	})
}
