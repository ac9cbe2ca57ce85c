package cli

import (
	"strings"
	"testing"
)

// TestUnknownCommand checks the suggestions for commands that do not exist, also for those of other tools.
func TestUnknownCommand(t *testing.T) {
	none := run{ctx: t.Context(), socket: "/nonexistent"}
	for args, hint := range map[string]string{
		"volume creat":           "did you mean volctl volume create?",
		"volume show":            "did you mean volctl volume status?",
		"volume describe data":   "did you mean volctl volume status?",
		"volume get data":        "did you mean volctl volume list, or volctl volume status?",
		"plugin show san":        "did you mean volctl plugin status?",
		"resize data":            "did you mean volctl volume expand?",
		"volume rm data":         "volctl volume deregister data forgets the volume and keeps its data; volctl volume delete data destroys the data",
		"rm data":                "volctl volume deregister data forgets the volume and keeps its data; volctl volume delete data destroys the data",
		"attach data":            "volctl volume claim data",
		"top":                    "did you mean volctl volume stats?",
		"backup":                 "did you mean volctl cluster backup, or volctl state backup, or volctl volume snapshot?",
		"volume backup":          "did you mean volctl volume snapshot?",
		"node cordon":            "did you mean volctl node drain?",
		"claim data":             "did you mean volctl volume claim data?",
		"help volume creat":      "did you mean volctl volume create?",
		"help volume claim data": "volctl volume claim --help",
		"help xyzzy":             "volctl --help",
		"xyzzy":                  "volctl --help",
	} {
		words := strings.Fields(args)
		res := none.volctl(words...)
		expect(t, res, 2, "", "hint: "+hint+"\n")
		if _, name, _ := strings.Cut(res.stderr, `there is no command "volctl `); name == "" || !strings.Contains(args, name[:strings.Index(name, `"`)]) {
			t.Errorf("volctl %s: %s", args, res.stderr)
		}
	}
}

// TestHelp checks that help shows the help of a command.
func TestHelp(t *testing.T) {
	none := run{ctx: t.Context(), socket: "/nonexistent"}
	want := none.volctl("volume", "claim", "--help").stdout
	if got := none.volctl("help", "volume", "claim"); got.code != 0 || got.stdout != want {
		t.Errorf("help ends with %d: %s%s", got.code, got.stdout, got.stderr)
	}
}
