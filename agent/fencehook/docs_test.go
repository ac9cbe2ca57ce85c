package fencehook

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// documented returns the code block of a language in docs/fence-hooks.md that contains a text.
func documented(t *testing.T, language, text string) string {
	t.Helper()
	raw, err := os.ReadFile("../../docs/fence-hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(string(raw), -1)
	for _, block := range blocks {
		if strings.Contains(block[1], text) {
			return block[1]
		}
	}
	t.Fatalf("docs/fence-hooks.md has no block with %q", text)
	return ""
}

// TestDocumentedExecutable calls the executable of the page with a simulated ipmitool.
func TestDocumentedExecutable(t *testing.T) {
	h, dir := newHooks(t, short)
	elsewhere := t.TempDir()
	script(t, elsewhere, "ipmitool", `d=`+elsewhere+`
for verb; do :; done
[ ! -e $d/broken ] || { echo 'Error: Unable to establish IPMI v2 session' >&2; exit 1; }
case $verb in
off) touch $d/is-off; echo 'Chassis Power Control: Down/Off';;
on) rm $d/is-off; echo 'Chassis Power Control: Up/On';;
status) [ -e $d/is-off ] && echo 'Chassis Power is off' || echo 'Chassis Power is on';;
esac`)
	hook := documented(t, "sh", "ipmitool")
	write(t, dir+"/bmc", strings.ReplaceAll(hook, "ipmitool ", elsewhere+"/ipmitool "), 0o755)

	target := Target{Host: "db2"}
	if r := h.Status(t.Context(), target); r.Power != PowerOn {
		t.Errorf("got %+v", r)
	}
	for range 2 {
		if r := h.Off(t.Context(), target); !r.Proven {
			t.Errorf("got %+v", r)
		}
	}
	if r := h.Status(t.Context(), target); r.Power != PowerOff {
		t.Errorf("got %+v", r)
	}
	if r := h.On(t.Context(), target); !r.Done {
		t.Errorf("got %+v", r)
	}
	if r := h.Off(t.Context(), Target{Host: "db3"}); r.Hook != "" || r.Started {
		t.Errorf("got %+v", r)
	}
	write(t, elsewhere+"/broken", "", 0o644)
	if r := h.Off(t.Context(), target); r.Proven {
		t.Errorf("got %+v", r)
	}
	if r := h.Status(t.Context(), target); r.Power != PowerUnknown {
		t.Errorf("got %+v", r)
	}
}

// TestDocumentedAgent reads the options of a fence agent on the page.
func TestDocumentedAgent(t *testing.T) {
	f, err := parseAgentFile(documented(t, "ini", "fence_ipmilan"))
	if err != nil || !f.serves("db1") || !f.serves("db2") || f.serves("db3") {
		t.Errorf("got %+v, %v", f, err)
	}
}
