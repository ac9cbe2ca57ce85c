package output

import (
	"bytes"
	"strings"
	"testing"
)

// printer returns a Printer for a terminal with the given width. If columns is 0, stdout is a pipe.
func printer(columns int) *Printer {
	return &Printer{Options: Options{Format: FormatTable, Width: columns, Device: func(number string) string {
		return map[string]string{"7:3": "/dev/loop3"}[number]
	}}}
}

func TestTable(t *testing.T) {
	header := []string{"Id", "State"}
	rows := [][]string{{"a", "waiting for the plugin, which is starting"}, {"größe", "ready"}}
	for _, tt := range []struct {
		name    string
		columns int
		header  []string
		rows    [][]string
		want    string
	}{
		{"a pipe", 0, header, rows, "> ID     STATE\n> a      waiting for the plugin, which is starting\n> größe  ready\n"},
		{"a wide terminal", 80, header, rows, "> ID     STATE\n> a      waiting for the plugin, which is starting\n> größe  ready\n"},
		{"a narrow terminal", 30, header, rows, "> ID     STATE\n> a      waiting for the\n>        plugin, which is\n>        starting\n> größe  ready\n"},
		{"a word that is too long", 20, header, [][]string{{"a", "/var/lib/volagent/data"}}, "> ID  STATE\n> a   /var/lib/volag\n>     ent/data\n"},
		{"columns that would be too narrow", 16, header, rows, "> ID     a\n> STATE  waiting\n>        for the\n>        plugin,\n>        which\n>        is\n>        startin\n>        g\n" +
			"\n> ID     größe\n> STATE  ready\n"},
		{"no rows", 0, header, nil, "> ID  STATE\n"},
		{"no header", 0, nil, rows[1:], "> größe  ready\n"},
		{"nothing", 0, nil, nil, ""},
		{"one line for each row", 0, nil, [][]string{{"a\nb", "\x1b[2J", ""}}, "> a b  \\x1b[2J\n"},
	} {
		var w bytes.Buffer
		if err := printer(tt.columns).Table(&w, "> ", tt.header, tt.rows); err != nil || w.String() != tt.want {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", tt.name, err, w.String(), tt.want)
		}
	}
}

// TestRows checks that a column becomes wider when a wider cell arrives, and that the header is
// written only once.
func TestRows(t *testing.T) {
	var w bytes.Buffer
	out := printer(0)
	out.Stdout = &w
	rows := out.NewRows([]string{"Check", "Said"}, 6)
	for _, row := range [][]string{{"a", "one"}, {"a long name", "two"}, {"b", "three"}} {
		if err := rows.Add(row...); err != nil {
			t.Fatal(err)
		}
	}
	const want = "CHECK   SAID\na       one\na long name  two\nb            three\n"
	if w.String() != want {
		t.Errorf("got\n%s\nwant\n%s", w.String(), want)
	}
}

// TestHeadline checks that a long headline wraps between words, and that the colour codes of a mark
// take up no columns.
func TestHeadline(t *testing.T) {
	out := printer(24)
	out.Colour = true
	var w bytes.Buffer
	out.Headline(&w, "", out.Mark(Good), "data  mounted", "", "1GiB of 5GiB")
	if want := "\x1b[32m●\x1b[0m data  mounted   1GiB\n  of 5GiB\n"; w.String() != want {
		t.Errorf("got %q, want %q", w.String(), want)
	}
}

// TestFields checks that the values on different screens start in the same column.
func TestFields(t *testing.T) {
	var w bytes.Buffer
	err := printer(0).Fields(&w, "  ", []Field{Named("Do", "umount /a"), Named("", "more"), Named("Mode", "rw", "", "controller: no")})
	if want := "  Do       umount /a\n           more\n  Mode     rw   controller: no\n"; err != nil || w.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, w.String(), want)
	}
}

func TestPlainWords(t *testing.T) {
	for text, want := range map[string]string{
		"NodeStageVolume: Internal: no such disk":                              "NodeStageVolume: failed in the plugin: no such disk",
		"after 1s: CreateVolume: Aborted: copying, held by pid 7":              "after 1s: CreateVolume: in progress already: copying, held by pid 7",
		"NodeGetVolumeStats: DeadlineExceeded":                                 "NodeGetVolumeStats: no answer in time",
		"NodeStageVolume: Terrible: text":                                      "NodeStageVolume: Terrible: text",
		"the disk: Internal: text":                                             "the disk: Internal: text",
		"NodeUnstageVolume: device 7:3 is still in use: pid 7":                 "NodeUnstageVolume: /dev/loop3 is still in use: pid 7",
		"block device 7:3 of volume \"a\" is gone":                             "/dev/loop3 of volume \"a\" is gone",
		"device 7:4 is still in use":                                           "device 7:4 is still in use",
		"cannot listen on 127.0.0.1:80":                                        "cannot listen on 127.0.0.1:80",
		"inode 12 of device 7:3 (ext4)":                                        "inode 12 of /dev/loop3 (ext4)",
		strings.Repeat("x", 70) + " no file is attached to loop device 7:3: x": strings.Repeat("x", 70) + " no file is attached to /dev/loop3: x",
	} {
		if got := printer(0).plain(text); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	for source, want := range map[string]string{"7:3": "/dev/loop3", "7:4": "7:4", "nas:/export": "nas:/export", "/dev/sda": "/dev/sda", "": ""} {
		if got := printer(0).Source(source); got != want {
			t.Errorf("source %s: got %q, want %q", source, got, want)
		}
	}
	wide := printer(0)
	wide.Format = FormatWide
	if got := wide.plain("NodeStageVolume: Internal: device 7:3"); got != "NodeStageVolume: Internal: /dev/loop3" {
		t.Errorf("with -o wide: %q", got)
	}
}
