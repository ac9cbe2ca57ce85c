package bytesize_test

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/bytesize"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]int64{
		"1B": 1, "1b": 1, "10GiB": 10 << 30, "1.5GiB": 3 << 29, "2 TB": 2e12, "1KB": 1000, "1kB": 1000, "4KiB": 4096, "3MB": 3e6, "3MiB": 3 << 20, "9GB": 9e9, "1TiB": 1 << 40,
		"0.001kB": 1, "9223372036854775807B": 1<<63 - 1, "9223372036854775807": 1<<63 - 1,
		"7K": 7000, "7k": 7000, "20M": 20e6, "20m": 20e6, "20G": 20e9, "20g": 20e9, "20gb": 20e9, "20Gb": 20e9, "2T": 2e12, "3P": 3e15, "3PB": 3e15, "3PiB": 3 << 50, "2t": 2e12,
		"7Ki": 7 << 10, "7KI": 7 << 10, "20Mi": 20 << 20, "20Gi": 20 << 30, "20gi": 20 << 30, "1Gib": 1 << 30, "10gib": 10 << 30, "2Ti": 2 << 40, "12.0 GiB": 12 << 30,
		"1048576": 1 << 20, "10737418240": 10 << 30, "1048576.0": 1 << 20,
	} {
		if got, err := bytesize.Parse(in); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", in, got, err, want)
		}
	}
	checkBadSizes(t, bytesize.Parse, "write a number with a unit K, M, G, T or P (1000), or Ki, Mi, Gi, Ti or Pi (1024), as in 20G or 20GiB")
}

// TestParseDocker checks that a single letter counts in 1024, as docker counts, and that the other
// units are those of volume files.
func TestParseDocker(t *testing.T) {
	for in, want := range map[string]int64{
		"20g": 20 << 30, "20G": 20 << 30, "512m": 512 << 20, "4k": 4096, "1.5t": 3 << 39, "20gb": 20e9, "20GB": 20e9, "20gi": 20 << 30, "20GiB": 20 << 30, "7b": 7, "1048576": 1 << 20,
	} {
		if got, err := bytesize.ParseDocker(in); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", in, got, err, want)
		}
	}
	checkBadSizes(t, bytesize.ParseDocker, "write a number with a unit k, m, g, t or p (1024, as docker counts), or KB, MB, GB, TB or PB (1000), as in 20g")
}

func checkBadSizes(t *testing.T, parse func(string) (int64, error), forms string) {
	t.Helper()
	for in, want := range map[string]string{
		"": `bad size "": write`, "10": "a number without a unit counts bytes, and must be at least 1048576", "1048575": "at least 1048576", "GiB": `bad size "GiB": write`,
		"-1GiB": "more than 0", "-20G": "more than 0", "1e3GiB": "write a number", "10Q": `there is no unit "Q"`, "10GBit": `there is no unit "GBit"`, "10bi": `no unit "bi"`, "10E": `no unit "E"`, "10kmgt": "no unit",
		"0B": "more than 0", "0": "more than 0", "0.5B": "whole number of bytes", "1.0001K": "whole number of bytes", "2000000.5": "whole number of bytes",
		"9223372036854775808B": "more than 2^63-1", "9223372036854775808": "more than 2^63-1", "9000000TiB": "more than 2^63-1", "99999999999999999999G": "write a number",
		" 1GiB": "write a number", "1GiB ": "write a number", "1  GiB": "write a number", ".5GiB": "write a number", "1.GiB": "write a number", "1,000MB": "write a number", "١GiB": "write a number",
		"20K\u0130B": "write a number",
	} {
		got, err := parse(in)
		if err == nil || got != 0 || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "bad size") || !strings.HasSuffix(err.Error(), forms) {
			t.Errorf("%q: got %d, %v, want an error with %q and %q", in, got, err, want, forms)
		}
	}
}

func TestFormat(t *testing.T) {
	for size, want := range map[int64]string{1: "1B", 1000: "1kB", 1024: "1KiB", 1500: "1500B", 10 << 30: "10GiB", 20e9: "20GB", 1024e9: "1024GB", 1<<63 - 1: "9223372036854775807B"} {
		if got := bytesize.Format(size); got != want {
			t.Errorf("%d: got %s, want %s", size, got, want)
		}
		if back, err := bytesize.Parse(bytesize.Format(size)); err != nil || back != size {
			t.Errorf("%d reads back as %d, %v", size, back, err)
		}
	}
}

// FuzzParse checks that each accepted size is positive, and that Format writes a text for the same
// size.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"20G", "20GiB", "1.5 TB", "0.001kB", "1048576", "-1", "10Q", "9223372036854775807", "99999999999P", "1.", ".5G", "1e3", "G"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string) (int64, error){bytesize.Parse, bytesize.ParseDocker} {
			size, err := parse(text)
			if err != nil {
				if size != 0 {
					t.Errorf("%q: %d, %v", text, size, err)
				}
				continue
			}
			if again, err := bytesize.Parse(bytesize.Format(size)); size <= 0 || err != nil || again != size {
				t.Errorf("%q is %d bytes, written as %s, which is %d bytes, %v", text, size, bytesize.Format(size), again, err)
			}
		}
	})
}
