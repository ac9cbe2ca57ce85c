package metrics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// These are the limits for clients on the network. Each connection serves one request.
const (
	maxConns     = 8
	maxHeader    = 8 << 10 // in bytes
	readWithin   = 5 * time.Second
	writeWithin  = 30 * time.Second
	finishWithin = 500 * time.Millisecond
	// listenAgain is the pause after a failed attempt to listen. The address may belong to an
	// interface that comes up later, or another program may use the port.
	listenAgain = 5 * time.Second
)

// ServerOptions configures a Server.
type ServerOptions struct {
	// Address is host:port. Port 0 selects a free port.
	Address string
	// Listen opens the address.
	Listen func(ctx context.Context, address string) (net.Listener, error)
	Write  func(io.Writer) error
	// The server calls Listening with the address each time it begins to serve. It calls Failed
	// with the error if it cannot serve. It reports consecutive equal errors only once.
	Listening func(net.Addr)
	Failed    func(error)
	// Log receives the HTTP server's messages about single connections.
	Log hclog.Logger
}

// Server answers GET /metrics on a TCP address, and no other request. It does not authenticate
// clients: every client that reaches the address can read the metrics.
type Server struct {
	o     ServerOptions
	again time.Duration

	mu    sync.Mutex
	fault error
}

// NewServer returns a server that does not listen yet.
func NewServer(o ServerOptions) *Server { return &Server{o: o, again: listenAgain} }

// Fault returns the error that prevents the server from serving, or nil if it serves.
func (s *Server) Fault() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// Run serves until ctx ends. If it cannot listen on the address, it retries every 5 s. The other
// parts of the agent do not wait for it.
func (s *Server) Run(ctx context.Context) {
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}

		s.failed(err)
		pause := time.NewTimer(s.again)

		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
}

func (s *Server) failed(err error) {
	s.mu.Lock()
	was := s.fault
	s.fault = err
	s.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		s.o.Failed(err)
	}
}

// serve listens and answers until ctx ends or the listener fails. It returns nil if ctx has ended.
func (s *Server) serve(ctx context.Context) error {
	l, err := s.o.Listen(ctx, s.o.Address)
	if err != nil {
		return err
	}

	s.failed(nil)
	s.o.Listening(l.Addr())
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: readWithin,
		ReadTimeout:       readWithin,
		WriteTimeout:      writeWithin,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          s.o.Log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	server.SetKeepAlivesEnabled(false) // otherwise idle connections could use up maxConns
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)

		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishWithin)
		defer cancel()

		if server.Shutdown(bounded) != nil {
			// A client whose connection breaks can retry after the agent's restart.
			_ = server.Close()
		}
	})
	err = server.Serve(&bounded{Listener: l, free: make(chan struct{}, maxConns), closed: make(chan struct{})})
	if !stop() {
		<-ended
	}

	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}

	return err
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/metrics":
		http.Error(w, "not found: this server only serves /metrics", http.StatusNotFound)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed: use GET or HEAD", http.StatusMethodNotAllowed)
		return
	}

	var all bytes.Buffer // a buffer, so that a client never receives only a part of the metrics
	if err := s.o.Write(&all); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}

	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(all.Len()))
	_, _ = w.Write(all.Bytes()) // an error means that the client has disconnected
}

// bounded is a listener that limits the number of open connections. At the limit, a new connection
// waits in the kernel's queue until another one ends.
type bounded struct {
	net.Listener
	free   chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.free <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}

	c, err := b.Listener.Accept()
	if err != nil {
		<-b.free
		return nil, err
	}

	return &boundedConn{Conn: c, release: sync.OnceFunc(func() { <-b.free })}, nil
}

// Close implements net.Listener.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

type boundedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
