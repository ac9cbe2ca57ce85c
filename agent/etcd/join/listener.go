package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/netutil"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/cert"
	"github.com/volagent/volagent/agent/etcd/hostdir"
)

// Listener serves the join port of a member.
type Listener struct {
	registrar *Registrar
	log       hclog.Logger
	server    *http.Server
	address   string
	done      chan struct{}
}

// Listen opens the join port and serves it until Close.
func Listen(address string, r *Registrar, log hclog.Logger) (*Listener, error) {
	config, err := serverConfig(r.Dir)
	if err != nil {
		return nil, err
	}
	sock, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot open the join port: %w", err)
	}

	l := &Listener{registrar: r, log: log, address: sock.Addr().String(), done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+helloPath, l.hello)
	mux.HandleFunc("POST "+joinPath, l.join)
	mux.HandleFunc("POST "+renewPath, l.renew)
	l.server = &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: requestLimit + 10*time.Second,
		MaxHeaderBytes: 16 << 10, ErrorLog: log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}

	go func() {
		defer close(l.done)
		if err := l.server.Serve(tls.NewListener(netutil.LimitListener(sock, maxConns), config)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the join port has failed; hosts cannot join through this member", "error", err)
		}
	}()
	return l, nil
}

// maxConns limits the connections of the join port. Every host in the network can open one, and each of
// them costs etcd, which runs in the same process, a file and memory. Further connections wait in the
// kernel. A connection without a request ends after the read timeout.
const maxConns = 256

// Address returns the address of the port.
func (l *Listener) Address() string { return l.address }

// Close ends all requests and closes the port.
func (l *Listener) Close() error {
	err := l.server.Close()
	<-l.done
	return err
}

// serverConfig presents the host's certificate with that of its authority. It reads them again for
// each connection, because the host's certificate is renewed.
func serverConfig(d hostdir.Dir) (*tls.Config, error) {
	ca, err := d.Read(hostdir.CACert)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)

	return &tls.Config{
		MinVersion: tls.VersionTLS13, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(d.Path(hostdir.HostCert), d.Path(hostdir.HostKey))
			if err != nil {
				return nil, fmt.Errorf("cannot read the certificate of this host: %w", err)
			}
			authority, err := cert.Parse(ca)
			if err != nil {
				return nil, err
			}
			pair.Certificate = append(pair.Certificate, authority.Raw)
			return &pair, nil
		},
	}, nil
}

func (l *Listener) hello(w http.ResponseWriter, _ *http.Request) {
	l.answer(w, hello{Time: l.registrar.Now().UTC(), Cluster: l.registrar.State().ClusterID}, nil)
}

func (l *Listener) join(w http.ResponseWriter, req *http.Request) {
	r, err := read(w, req)
	if err != nil {
		l.answer(w, nil, err)
		return
	}

	ctx, cancel := context.WithTimeout(req.Context(), requestLimit)
	defer cancel()
	a, err := l.registrar.Admit(ctx, r)
	if err != nil {
		l.log.Warn("refused a host that wants to join", "host", r.Host.Name[:min(len(r.Host.Name), maxName)], "from", req.RemoteAddr, "error", err)
	} else {
		l.log.Info("admitted a host", "host", r.Host.Name, "role", a.Role, "from", req.RemoteAddr)
	}
	l.answer(w, a, err)
}

func (l *Listener) renew(w http.ResponseWriter, req *http.Request) {
	r, err := read(w, req)
	if err == nil && (req.TLS == nil || len(req.TLS.VerifiedChains) == 0) {
		err = &api.Error{
			Code: api.CodePermission, Message: "a renewal needs a certificate of the cluster that is valid",
			Hint: "let the host join again: volctl cluster join",
		}
	}
	if err != nil {
		l.answer(w, nil, err)
		return
	}

	ctx, cancel := context.WithTimeout(req.Context(), requestLimit)
	defer cancel()
	a, err := l.registrar.Renew(ctx, r, req.TLS.VerifiedChains[0][0].Subject.CommonName)
	l.answer(w, a, err)
}

// read decodes a request.
func read(w http.ResponseWriter, req *http.Request) (Request, error) {
	var r Request
	raw, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil {
		// The error could contain a part of the request, which has a secret.
		return r, &api.Error{Code: api.CodeInvalid, Message: "the request cannot be read"}
	}
	return r, nil
}

// answer writes an answer or an error.
func (l *Listener) answer(w http.ResponseWriter, value any, err error) {
	code := http.StatusOK
	if err != nil {
		e := &api.Error{Code: api.CodeFailed, Message: err.Error()}
		var known *api.Error
		if errors.As(err, &known) {
			e = &api.Error{Code: known.Code, Message: err.Error(), Hint: known.Hint}
		}
		code, value = e.Code.HTTPStatus(), api.ErrorBody{Error: e}
	}

	raw, err := json.Marshal(value)
	if err != nil {
		code, raw = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if _, err := w.Write(raw); err != nil {
		l.log.Debug("cannot answer on the join port", "error", err)
	}
}
