package metrics

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

const patience = 100 * time.Second

// serving is a running Server, with channels for the calls of Listening and Failed.
type serving struct {
	*Server
	at     chan string
	failed chan error
	end    func() // stops the server and waits for its end
}

func serve(t *testing.T, address string, write func(io.Writer) error) *serving {
	t.Helper()
	s := &serving{at: make(chan string, 1000), failed: make(chan error, 1000)}
	s.Server = NewServer(ServerOptions{
		Address: address, Listen: listenTCP, Write: write, Log: hclog.NewNullLogger(),
		Listening: func(at net.Addr) { s.at <- at.String() }, Failed: func(err error) { s.failed <- err },
	})
	s.again = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	s.end = func() { cancel(); <-done }
	t.Cleanup(s.end)
	return s
}

func listenTCP(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// take receives a value from a channel, and fails the test if none arrives in time.
func take[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	return v
}

// answer is one complete HTTP response.
type answer struct {
	code   int
	header http.Header
	length int64
	text   string
}

func ask(t *testing.T, method, url string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, resp.ContentLength, string(all)}
}

// TestServed checks that the server answers requests for /metrics, over IPv4 and IPv6, and refuses
// other paths.
func TestServed(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		if l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address); err != nil {
			t.Logf("skipped: %v", err) // this host has no IPv6
			continue
		} else if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		s := serve(t, address, text("a 1\n"))
		root := "http://" + take(t, s.at)
		got := ask(t, http.MethodGet, root+"/metrics?collect=x")
		if got.code != http.StatusOK || got.text != "a 1\n" || got.header.Get("Content-Type") != contentType {
			t.Errorf("%s: %+v", address, got)
		}
		if got := ask(t, http.MethodHead, root+"/metrics"); got.code != http.StatusOK || got.text != "" || got.length != 4 {
			t.Errorf("HEAD: %+v", got)
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, "FROB"} {
			if got := ask(t, method, root+"/metrics"); got.code != http.StatusMethodNotAllowed || got.header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s: %+v", method, got)
			}
		}
		for _, path := range []string{"/", "/metrics/", "/v1/node", "/v1/volumes", "/metrics/../v1/node", "/debug/pprof/"} {
			if got := ask(t, http.MethodGet, root+path); got.code != http.StatusNotFound || strings.Contains(got.text, "a 1") {
				t.Errorf("%s: %+v", path, got)
			}
		}
		if err := s.Fault(); err != nil {
			t.Error(err)
		}
	}
}

// TestServedAnError checks that the server answers with an error if the sources could write only a
// part of the metrics.
func TestServedAnError(t *testing.T) {
	s := serve(t, "127.0.0.1:0", func(w io.Writer) error { return errors.Join(text("a 1\n")(w), errors.New("no more")) })
	got := ask(t, http.MethodGet, "http://"+take(t, s.at)+"/metrics")
	if got.code != http.StatusInternalServerError || strings.Contains(got.text, "a 1") || !strings.Contains(got.text, "no more") {
		t.Errorf("%+v", got)
	}
}

// TestServedBounds checks that the server limits the number of connections, the requests for each
// connection, and the size of a request.
func TestServedBounds(t *testing.T) {
	var at, most atomic.Int32
	release := make(chan struct{})
	s := serve(t, "127.0.0.1:0", func(w io.Writer) error {
		n := at.Add(1)
		defer at.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		return text("a 1\n")(w)
	})
	address := take(t, s.at)
	answers := make(chan error, 3*maxConns)
	for range cap(answers) {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		go func() {
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				err = errors.Join(err, resp.Body.Close())
			}
			if err == nil && !resp.Close {
				err = errors.New("the connection stays open")
			}
			answers <- err
		}()
	}
	for end := time.Now().Add(patience); at.Load() < maxConns && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	// Give the server time, because it must not accept a connection above the limit.
	time.Sleep(200 * time.Millisecond)
	close(release)
	for range cap(answers) {
		if err := take(t, answers); err != nil {
			t.Error(err)
		}
	}
	if n := most.Load(); n != maxConns {
		t.Errorf("%d at once", n)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Long", strings.Repeat("x", 2*maxHeader))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a long header: %s", resp.Status)
	}
}

// TestServedLater checks that the server reports an occupied port once, and serves when the port
// becomes free. When the server ends, the port must be free again.
func TestServedLater(t *testing.T) {
	other, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := other.Addr().String()
	s := serve(t, address, text("a 1\n"))
	if err := take(t, s.failed); !strings.Contains(err.Error(), "address already in use") {
		t.Error(err)
	}
	if s.Fault() == nil {
		t.Error("no fault while the port is another's")
	}
	time.Sleep(20 * s.again) // wait for several attempts to listen
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if at := take(t, s.at); at != address {
		t.Errorf("it listens on %s", at)
	}
	if err := s.Fault(); err != nil || len(s.failed) > 0 {
		t.Errorf("%v, and said %d times more", err, len(s.failed))
	}
	if got := ask(t, http.MethodGet, "http://"+address+"/metrics"); got.text != "a 1\n" {
		t.Errorf("got %+v", got)
	}
	s.end()
	if other, err = new(net.ListenConfig).Listen(t.Context(), "tcp", address); err != nil {
		t.Fatal(err)
	}
	_ = other.Close()
}
