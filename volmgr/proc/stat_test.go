package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func line(name string, start uint64) []byte {
	return fmt.Appendf(nil, "7 (%s) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 %d 1000 10", name, start)
}

// TestParseStat checks that the start time of a process does not depend on the reader's time
// namespace.
func TestParseStat(t *testing.T) {
	for _, tt := range []struct {
		name  string
		shown uint64
		shift int64
		want  uint64
	}{
		{"sleep", 500, 0, 500},
		{"a) b (c", 500, 0, 500},
		{"later clock", 10_500, 100e9, 500},
		{"earlier clock", 400, -1e9, 500},
		{"part of a tick", 10_500, 100e9 + 1, 499},
		{"part of a tick before", 400, -1e9 + 1, 499},
		{"before the boot", 3, 1e9, 0},
	} {
		got, err := parseStat(line(tt.name, tt.shown), tt.shift)
		if err != nil || got.Start != tt.want || got.State != 'S' || got.Session != 7 || got.Threads != 3 {
			t.Errorf("%s: %+v, %v, want start %d", tt.name, got, err, tt.want)
		}
		if tt.want > 0 && !got.Began(500) {
			t.Errorf("%s: it did not begin at 500", tt.name)
		}
		if got.Began(502) || got.Began(497) {
			t.Errorf("%s: it began at two times", tt.name)
		}
	}
	for _, bad := range []string{"", "7 (x) S 1", "7 (x) S a b c d e f g h i j k l m n o p q r s t u v"} {
		if got, err := parseStat([]byte(bad), 0); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestBootShift(t *testing.T) {
	for text, want := range map[string]int64{
		"monotonic           0         0\nboottime       -100 500000000\n": -99_500_000_000,
		"1 5 0\n7 3 1\n": 3_000_000_001,
	} {
		if got, err := bootShift(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	if _, err := bootShift("monotonic 0 0\n"); err == nil {
		t.Error("an offset comes from nowhere")
	}
}

const lookVar = "PROCSTAT_TEST_PID"

func TestMain(m *testing.M) {
	var pid int
	if n, err := fmt.Sscan(os.Getenv(lookVar), &pid); n != 1 || err != nil {
		os.Exit(m.Run())
	}
	s, err := ReadStat(pid)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ns, _ := os.Readlink("/proc/self/ns/time")
	fmt.Println(s.Start, ns)
}

// TestOtherNamespace checks that a process in another time namespace reads the same start time as
// this process.
func TestOtherNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a time namespace")
	}
	want, err := ReadStat(os.Getpid())
	if err != nil || !want.Alive() || want.Dead() {
		t.Fatalf("%+v, %v", want, err)
	}
	own, err := os.Readlink("/proc/self/ns/time")
	if err != nil {
		t.Skip("this kernel has no time namespaces")
	}
	for _, shift := range []string{"100000", "-5"} {
		cmd := exec.CommandContext(t.Context(), "unshare", "--time", "--fork", "--boottime", shift, os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", lookVar, os.Getpid()))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var start uint64
		var ns string
		if _, err := fmt.Sscan(string(out), &start, &ns); err != nil || ns == own {
			t.Fatalf("it is not in another namespace: %q, %v", out, err)
		}
		if start != want.Start {
			t.Errorf("shifted by %s s the process began at %d, and here at %d", shift, start, want.Start)
		}
	}
}

// TestNone checks the error for pids that cannot exist: 0, and a number above the maximum pid.
func TestNone(t *testing.T) {
	for _, pid := range []int{0, 1 << 30} {
		if _, err := ReadStat(pid); !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
}
