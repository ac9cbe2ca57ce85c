package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
)

// These times decide how soon a dead connection is noticed. If the host of an endpoint is dead, the
// kernel notices it after deadAfter, with data in flight or without. If only the process is frozen,
// the kernel of its host still answers, and gRPC's ping notices it. gRPC allows one ping in 10 s.
const (
	pingEvery     = 10 * time.Second
	deadAfter     = 3 * time.Second
	probeAfter    = 2 * time.Second // idle time before the kernel's first probe
	probeEvery    = time.Second
	probes        = 2
	dialTimeout   = 2 * time.Second
	longestRedial = time.Second // gRPC's default is 2 minutes
)

// dial returns a client. It does not wait for a connection.
func dial(ctx context.Context, o Options, l *login) (*clientv3.Client, error) {
	if err := checkEndpoints(o.Endpoints); err != nil {
		return nil, err
	}
	secure, err := tlsConfig(o)
	if err != nil {
		return nil, err
	}

	dialer := &net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeEvery, Count: probes},
	}
	options := []grpc.DialOption{}
	if secure != nil {
		options = append(options, grpc.WithTransportCredentials(alertCredentials{credentials.NewTLS(secure)}))
	}
	redial := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longestRedial}
	return clientv3.New(clientv3.Config{
		Context:              ctx,
		Endpoints:            o.Endpoints,
		TLS:                  secure,
		Logger:               zap.NewNop(), // Store reports failures
		DialKeepAliveTime:    pingEvery,
		DialKeepAliveTimeout: deadAfter, // gRPC also sets the kernel's TCP_USER_TIMEOUT
		PermitWithoutStream:  false,     // etcd ends connections with pings and without calls ("too_many_pings")

		// One attempt, so none of the client's retries. The client repeats a transaction if the server
		// answers DeadlineExceeded or Canceled while the caller's context has not ended. The server may
		// then have executed the first attempt. Store repeats calls itself.
		MaxUnaryRetries: 1,

		DialOptions: append(options,
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: redial, MinConnectTimeout: dialTimeout}),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", address)
			}),
			grpc.WithStatsHandler(sentHandler{}),
			grpc.WithPerRPCCredentials(l),
			grpc.WithIdleTimeout(0),
			grpc.WithDisableRetry(),
			grpc.WithNoProxy(),
		),
	})
}

// checkEndpoints returns an error if the list is empty, or if an entry is no URL with http or https.
// The etcd client takes the scheme of the first entry for all.
func checkEndpoints(endpoints []string) error {
	if len(endpoints) == 0 {
		return errors.New("no endpoints are configured")
	}
	first, _, _ := strings.Cut(endpoints[0], "://")
	for _, e := range endpoints {
		scheme, address, ok := strings.Cut(e, "://")
		if !ok || address == "" {
			return fmt.Errorf("the endpoint %q is no URL", e)
		}
		if scheme != "http" && scheme != "https" {
			return fmt.Errorf("the endpoint %q must begin with http:// or https://", e)
		}
		if scheme != first {
			return fmt.Errorf("the endpoints %q and %q must both have TLS, or none", endpoints[0], e)
		}
	}
	return nil
}

// tlsConfig returns the TLS configuration, or nil for endpoints without TLS.
func tlsConfig(o Options) (*tls.Config, error) {
	if !strings.HasPrefix(o.Endpoints[0], "https://") {
		if o.CA != "" || o.Cert != "" || o.Key != "" {
			return nil, fmt.Errorf("the endpoint %q must begin with https://, because certificates are configured", o.Endpoints[0])
		}
		return nil, nil
	}

	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		text, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("cannot read the CA: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("the file %s contains no certificate in PEM format", o.CA)
		}
	}
	if o.Cert == "" && o.Key == "" {
		return config, nil
	}
	if _, err := tls.LoadX509KeyPair(o.Cert, o.Key); err != nil {
		return nil, fmt.Errorf("cannot read the client certificate: %w", err)
	}
	// Reading the files for each connection lets a renewed certificate take effect.
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		return &pair, err
	}
	return config, nil
}

// alertCredentials make connections that report why the server refused the client's certificate. With
// TLS 1.3, the server does that after the client's handshake. gRPC may then notice only that it can
// no longer write.
type alertCredentials struct {
	credentials.TransportCredentials
}

// ClientHandshake implements TransportCredentials.
func (c alertCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return alertConn{conn}, info, nil
}

// Clone implements TransportCredentials.
func (c alertCredentials) Clone() credentials.TransportCredentials {
	return alertCredentials{c.TransportCredentials.Clone()}
}

// alertConn is a TLS connection.
type alertConn struct{ net.Conn }

// Write writes to the connection. If that fails, and the server has sent an alert, the alert is the
// error.
func (c alertConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err == nil || c.SetReadDeadline(time.Now().Add(alertTimeout)) != nil {
		return n, err
	}
	// The connection is lost, so nothing else needs the byte.
	if _, alert := c.Read(make([]byte, 1)); alert != nil && refusedByTLS(alert.Error()) {
		err = alert
	}
	return n, err
}

// alertTimeout is the longest wait for an alert. The server sends the alert before it closes the
// connection.
const alertTimeout = 500 * time.Millisecond
