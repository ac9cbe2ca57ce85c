package volume

import "testing"

// TestCommand: a hint can be run as it stands.
func TestCommand(t *testing.T) {
	for id, want := range map[string]string{
		"web.service": "volctl volume detach data web.service",
		"first one":   "volctl volume detach data 'first one'",
		"it's; $HOME": `volctl volume detach data 'it'\''s; $HOME'`,
		"*":           "volctl volume detach data '*'",
	} {
		if got := Command("volctl volume detach %s %s", "data", id); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if got := Errorf(ErrRefused, "x").WithHint("volctl volume detach %s %s", "data", id).Hint; got != want {
			t.Errorf("hint: %s\nwant %s", got, want)
		}
	}
	if got := Errorf(ErrRefused, "x").WithHint("say %s", "a b").Hint; got != "say a b" {
		t.Errorf("what is no command became %q", got)
	}
}
