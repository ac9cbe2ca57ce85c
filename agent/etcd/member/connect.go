package member

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/volagent/volagent/agent/etcd/hostdir"
)

// Connect returns a client with the certificate of a host.
func Connect(d hostdir.Dir, s hostdir.State) (*Client, error) {
	config, err := TLS(d.Path(hostdir.CACert), d.Path(hostdir.HostCert), d.Path(hostdir.HostKey))
	if err != nil {
		return nil, err
	}
	return New(s.Endpoints(), config), nil
}

// TLS returns the configuration of a client with a certificate. It reads the certificate again for
// each connection, because it is renewed.
func TLS(ca, certFile, keyFile string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		raw, err := hostdir.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("file %s contains no certificate", ca)
		}
	}
	if certFile != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(certFile, keyFile)
			if err != nil {
				return nil, fmt.Errorf("cannot read the certificate of this host: %w", err)
			}
			return &pair, nil
		}
	}
	return config, nil
}
