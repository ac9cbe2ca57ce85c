// Package cert makes and judges the certificates of a cluster. Each member has the key of the
// cluster's authority and can sign certificates. A host makes its private keys itself; they never
// leave the host.
package cert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	// Life is how long a certificate is valid by default. It is renewed at two thirds of its life.
	Life = 90 * 24 * time.Hour

	// authorityLife is how long the authority's own certificate is valid. It is not renewed.
	authorityLife = 25 * 365 * 24 * time.Hour

	// maxBackdate is the time by which a new certificate begins in the past, because the clocks of
	// hosts differ a little. A short certificate begins in the past by a tenth of its life.
	maxBackdate = 10 * time.Minute
)

// Authority signs the certificates of one cluster.
type Authority struct {
	CertPEM, KeyPEM []byte
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
}

// NewAuthority makes an authority for a cluster.
func NewAuthority(cluster string, now time.Time) (*Authority, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}

	tmpl := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "volagent cluster " + cluster},
		NotBefore: now.Add(-maxBackdate), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make the certificate of the authority: %w", err)
	}

	return LoadAuthority(encode("CERTIFICATE", der), keyPEM)
}

// LoadAuthority reads an authority from PEM texts.
func LoadAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	c, err := Parse(certPEM)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(c.PublicKey) {
		return nil, errors.New("the key of the authority does not belong to its certificate")
	}

	return &Authority{CertPEM: certPEM, KeyPEM: keyPEM, cert: c, key: key}, nil
}

// Subject says for whom a certificate is.
type Subject struct {
	Name  string
	Hosts []string // IP addresses and host names at which a server answers; empty for a client
}

// Sign returns a certificate for the key in a certificate request. The caller decides the subject:
// Sign ignores all names in the request.
func (a *Authority) Sign(request []byte, s Subject, now time.Time, life time.Duration) ([]byte, error) {
	block, _ := pem.Decode(request)
	if block == nil {
		return nil, errors.New("the certificate request is not in PEM format")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = req.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate request: %w", err)
	}

	tmpl := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: s.Name},
		NotBefore: now.Add(-min(maxBackdate, life/10)), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(s.Hosts) > 0 {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range s.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}

	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, req.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("cannot sign the certificate of %q: %w", s.Name, err)
	}

	return encode("CERTIFICATE", der), nil
}

// NewKey returns a new private key in PEM format.
func NewKey() ([]byte, error) {
	_, keyPEM, err := newKey()
	return keyPEM, err
}

// NewRequest returns a certificate request for a private key.
func NewRequest(keyPEM []byte, name string) ([]byte, error) {
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate request: %w", err)
	}

	return encode("CERTIFICATE REQUEST", der), nil
}

// Parse reads the first certificate of a PEM text.
func Parse(certPEM []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil {
		return nil, errors.New("the certificate is not in PEM format")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate: %w", err)
	}

	return c, nil
}

// Fingerprint returns the SHA-256 hash of a certificate, or of the key of a certificate request, in
// hexadecimal digits.
func Fingerprint(text []byte) string {
	var data []byte
	if block, _ := pem.Decode(text); block != nil {
		data = block.Bytes
		if req, err := x509.ParseCertificateRequest(data); err == nil {
			data = req.RawSubjectPublicKeyInfo
		}
	}

	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// VerifyChain returns an error unless a TLS server belongs to the authority with the given
// fingerprint. The server presents its own certificate and that of its authority. VerifyChain
// returns the authority's certificate.
func VerifyChain(state tls.ConnectionState, fingerprint, host string, now time.Time) ([]byte, error) {
	chain := state.PeerCertificates
	if len(chain) < 2 {
		return nil, errors.New("the server does not present the certificate of its authority")
	}

	ca := chain[len(chain)-1]
	caPEM := encode("CERTIFICATE", ca.Raw)
	if Fingerprint(caPEM) != fingerprint {
		return nil, errors.New("the server belongs to another cluster: the fingerprint of its authority is not that of the token")
	}

	roots := x509.NewCertPool()
	roots.AddCert(ca)
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: host, CurrentTime: now}); err != nil {
		return nil, fmt.Errorf("cannot trust the server's certificate: %w", err)
	}

	return caPEM, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot encode a key: %w", err)
	}

	return key, encode("PRIVATE KEY", der), nil
}

func parseKey(keyPEM []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, errors.New("the key is not in PEM format")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the key: %w", err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key is not an ECDSA key")
	}

	return ec, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // crypto/rand never fails on Linux
	}
	return n
}
