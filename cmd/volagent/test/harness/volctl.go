package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// Result is the output and the exit code of a command.
type Result struct {
	Out, Err string
	Code     int
}

// Try runs volctl and returns its result.
func (h *Host) Try(args ...string) Result {
	h.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(BinDir, "volctl"), args...)
	cmd.Env = h.Env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := RunIn(h.Place, cmd)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.T.Fatalf("volctl %v: %v", args, err)
	}
	return Result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// Volctl runs volctl, which must succeed, and returns its output.
func (h *Host) Volctl(args ...string) string {
	h.T.Helper()
	r := h.Try(args...)
	if r.Code != 0 {
		h.T.Fatalf("volctl %s: exit %d\n%s%s", strings.Join(args, " "), r.Code, r.Out, r.Err)
	}
	return strings.TrimSpace(r.Out)
}

// StartVolctl runs volctl in the background and returns a channel that receives the result.
func (h *Host) StartVolctl(args ...string) <-chan Result {
	done := make(chan Result, 1)
	go func() { done <- h.Try(args...) }()
	return done
}

// ExpectExit asserts that volctl ends with the given exit code and that its output contains the
// given words.
func (h *Host) ExpectExit(code int, words string, args ...string) Result {
	h.T.Helper()
	r := h.Try(args...)
	if r.Code != code || !strings.Contains(r.Out+r.Err, words) {
		h.T.Fatalf("volctl %s: exit %d instead of %d, or it does not say %q:\n%s%s", strings.Join(args, " "), r.Code, code, words, r.Out, r.Err)
	}
	return r
}

// ExpectRefusal asserts that volctl ends with the given exit code and that its error contains the
// given words.
func (h *Host) ExpectRefusal(code int, words string, args ...string) {
	h.T.Helper()
	if r := h.Try(args...); r.Code != code || !strings.Contains(r.Err, words) {
		h.T.Errorf("volctl %s: exit %d\n%s\nwant exit %d, and %q", strings.Join(args, " "), r.Code, r.Err, code, words)
	}
}

// ExpectOutput asserts that the output of volctl contains the given words.
func (h *Host) ExpectOutput(words string, args ...string) {
	h.T.Helper()
	if out := h.Volctl(args...); !strings.Contains(out, words) {
		h.T.Errorf("volctl %s:\n%s\nwant %q", strings.Join(args, " "), out, words)
	}
}

// Decode runs volctl with -o json and returns the decoded output.
func Decode[T any](h *Host, args ...string) (v T) {
	h.T.Helper()
	h.Must(json.Unmarshal([]byte(h.Volctl(append(args, "-o", "json")...)), &v))
	return v
}

// Claims returns one string for each claim, with its volume, alloc and remark. The strings are
// sorted.
func (h *Host) Claims() (got []string) {
	h.T.Helper()
	for _, c := range Decode[[]api.Claim](h, "claim", "list") {
		got = append(got, strings.TrimSpace(c.Volume+" "+c.Alloc+" "+c.Remark))
	}
	slices.Sort(got)
	return got
}

// Event is one event in the output of volctl events.
type Event struct {
	Seq                                        uint64
	Time                                       time.Time
	Volume, Alloc, Plugin, Type, Step, Message string
}

// Events runs volctl events and returns the events.
func Events(h *Host, args ...string) (evs []Event) {
	h.T.Helper()
	for line := range strings.Lines(h.Volctl(append([]string{"events", "-o", "json"}, args...)...)) {
		var e Event
		h.Must(json.Unmarshal([]byte(line), &e))
		evs = append(evs, e)
	}
	return evs
}

// Inspect runs volagent inspect and returns its output and exit code.
func Inspect(h *Host, more ...string) (string, int) {
	h.T.Helper()
	cmd := exec.Command(filepath.Join(BinDir, "volagent"), append(append([]string{"inspect"}, h.Args()...), more...)...)
	cmd.Env = h.Env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	_ = RunIn(h.Place, cmd) // the exit code shows whether the command failed
	return out.String(), cmd.ProcessState.ExitCode()
}

// Metrics returns the metrics that the agent serves.
func Metrics(h *Host) string {
	h.T.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
		err = h.Place.Enter(func() error {
			conn, err = new(net.Dialer).DialContext(ctx, "unix", h.Socket())
			return err
		})
		return conn, err
	}}}
	req, err := http.NewRequestWithContext(h.T.Context(), http.MethodGet, "http://volagent/metrics", http.NoBody)
	h.Must(err)
	resp, err := client.Do(req)
	h.Must(err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	h.Must(err)
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		h.T.Fatalf("%s, %v\n%s", resp.Status, resp.Header, all)
	}
	return string(all)
}

// ExpectMetrics asserts that the agent's metrics contain all given lines.
func ExpectMetrics(h *Host, lines ...string) {
	h.T.Helper()
	got := Metrics(h)
	for _, want := range lines {
		if !slices.Contains(strings.Split(got, "\n"), want) {
			h.T.Errorf("no %q in\n%s", want, got)
		}
	}
}
