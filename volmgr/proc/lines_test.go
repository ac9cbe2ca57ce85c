package proc_test

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/proc"
)

// lines returns all lines of a file.
func lines(t *testing.T, file io.Reader) (all []string) {
	t.Helper()
	for r := proc.NewLines(file); ; {
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(line))
	}
}

// FuzzLines checks that Lines returns every line of any file, and that no returned line is too
// long. Lines must not change a line of permitted length. In longer lines, Lines may only truncate
// fields.
func FuzzLines(f *testing.F) {
	for _, text := range []string{"", "\n", "a\nb\n\nc", "36 35 98:0 /r /m rw,relatime shared:1 - overlay src rw\n", "1 2 3 /4 /5", "\n\n \n- - -", "\r\n\x00"} {
		f.Add(text, byte('x'), uint32(1))
		f.Add(text, byte('x'), uint32(proc.LongestLine))
		f.Add(text, byte(' '), uint32(2*proc.LongestLine))
	}
	f.Add("1 2", byte('x'), uint32(proc.LongestLine-3))
	f.Fuzz(func(t *testing.T, text string, b byte, times uint32) {
		if at := strings.IndexByte(text, ' '); at >= 0 { // makes one field long, or adds many fields
			text = text[:at] + string(bytes.Repeat([]byte{b}, int(times%150_000))) + text[at:]
		}
		want := strings.SplitAfter(text, "\n")
		if want[len(want)-1] == "" {
			want = want[:len(want)-1]
		}
		got := lines(t, strings.NewReader(text))
		if len(got) != len(want) {
			t.Fatalf("%d lines became %d", len(want), len(got))
		}
		for i := range got {
			short := len(want[i]) < proc.LongestLine
			if len(got[i]) > proc.LongestLine || short && got[i] != want[i] || got[i][len(got[i])-1] == '\n' != strings.HasSuffix(want[i], "\n") {
				t.Errorf("line %d of %d bytes became one of %d", i, len(want[i]), len(got[i]))
			}
			is, whole := strings.Split(strings.TrimSuffix(got[i], "\n"), " "), strings.Split(strings.TrimSuffix(want[i], "\n"), " ")
			for n := range is {
				if !strings.HasPrefix(whole[n], is[n]) {
					t.Errorf("line %d: field %d became %.100q", i, n, is[n])
				}
			}
		}
	})
}

// endless is a mount table with many mounts whose paths are longer than any buffer. While a test
// reads endless, endless also measures how much memory is in use.
type endless struct {
	line  string
	lines int
	rest  string
	most  uint64
}

// Read implements io.Reader.
func (e *endless) Read(p []byte) (int, error) {
	if e.rest == "" {
		if e.lines == 0 {
			return 0, io.EOF
		}
		if e.rest, e.lines = e.line, e.lines-1; e.lines%100 == 0 {
			e.most = max(e.most, inUse())
		}
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// inUse returns how many bytes of memory are in use after a garbage collection.
func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestLargeFile checks that Lines does not keep a very large file in memory.
func TestLargeFile(t *testing.T) {
	e := &endless{line: "36 35 0:52 / " + strings.Repeat("/"+strings.Repeat("a", 250), 1000) + " rw - tmpfs x rw\n", lines: 2000}
	before := inUse()
	n := 0
	for r := proc.NewLines(e); ; n++ {
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || !strings.HasSuffix(string(line), "a rw - tmpfs x rw\n") {
			t.Fatalf("%.100q, %v", line, err)
		}
	}
	if more := int64(e.most) - int64(before); n != 2000 || more > 4<<20 {
		t.Errorf("%d lines of %d bytes took %d bytes of memory", n, len(e.line), more)
	}
}

// TestFault checks that Lines returns a read error in the middle of a file. Lines must not treat
// the error as the end of the file.
func TestFault(t *testing.T) {
	broken := errors.New("broken")
	for _, text := range []string{"", "a\n", strings.Repeat("x", proc.LongestLine+1)} {
		r := proc.NewLines(io.MultiReader(strings.NewReader(text), faulty{broken}))
		var err error
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, broken) {
			t.Errorf("%.10q: %v", text, err)
		}
	}
}

type faulty struct{ err error }

// Read implements io.Reader.
func (f faulty) Read([]byte) (int, error) { return 0, f.err }
