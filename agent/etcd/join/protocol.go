// Package join is the protocol with which hosts join a cluster and renew their certificates. A
// member listens with TLS on the join port. A host that joins trusts the listener because its
// authority has the fingerprint in the token. The listener trusts the host because it knows the
// token's secret. A host that is in the cluster already uses its certificate.
package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/cert"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/token"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/volmgr/shared"
)

// These are the paths of the protocol.
const (
	helloPath = "/v1/hello"
	joinPath  = "/v1/join"
	renewPath = "/v1/renew"
)

const (
	// maxBody limits a request and an answer, in bytes.
	maxBody = 256 << 10

	// maxSkew is the greatest difference between the clocks of two hosts. Certificates depend on the
	// time, and a new one begins ten minutes in the past.
	maxSkew = 5 * time.Minute

	// requestLimit is the time limit of a request. Adding a member waits until etcd has been healthy
	// for some seconds.
	requestLimit = time.Minute
)

// hello is the answer of a listener to anyone.
type hello struct {
	Time    time.Time `json:"time"`
	Cluster string    `json:"cluster"`
}

// Request asks for the admission of a host, or for new certificates.
type Request struct {
	ID      string    `json:"id,omitempty"` // of the token
	Secret  string    `json:"secret,omitempty"`
	Host    wire.Host `json:"host"`
	Wish    wire.Role `json:"wish,omitempty"`
	Version string    `json:"version"` // of the host's etcd

	// Machine is the machine of the host.
	Machine shared.Machine `json:"machine,omitzero"`

	// HostCSR and AgentCSR are certificate requests in PEM format.
	HostCSR  []byte `json:"host_csr"`
	AgentCSR []byte `json:"agent_csr"`
}

// Answer is the answer to a Request. A renewal has only the certificates.
type Answer struct {
	HostCert  []byte        `json:"host_cert"`
	AgentCert []byte        `json:"agent_cert"`
	CACert    []byte        `json:"ca_cert,omitempty"`
	CAKey     []byte        `json:"ca_key,omitempty"` // for members
	ClusterID string        `json:"cluster_id,omitempty"`
	Role      wire.Role     `json:"role,omitempty"`
	Prefix    string        `json:"prefix,omitempty"`
	Life      time.Duration `json:"life,omitempty"`
	Quota     int64         `json:"quota,omitempty"`

	Members []hostdir.Peer `json:"members,omitempty"`
}

// Ask sends a request with a token to the join listeners, one after the other, until one answers.
// Now is the clock of this host.
func Ask(ctx context.Context, t token.Token, r Request, now func() time.Time) (Answer, error) {
	r.ID, r.Secret = t.ID, t.Secret
	var failed []error
	for _, address := range t.Endpoints {
		var a Answer
		client := byFingerprint(address, t.Fingerprint, now)
		err := hi(ctx, client, address, now)
		if err == nil {
			err = post(ctx, client, "https://"+address+joinPath, r, &a)
		}

		var refused *api.Error
		switch {
		case err == nil:
			return a, nil
		case errors.As(err, &refused):
			return a, err
		}
		failed = append(failed, fmt.Errorf("%s: %w", address, err))
	}

	return Answer{}, wire.Errorf(api.CodePluginUnavailable, "check that volagent-etcd runs on the members, and that their join port is open",
		"no member of the cluster answers: %v", errors.Join(failed...))
}

// hi refuses a listener whose clock differs too much from that of this host.
func hi(ctx context.Context, client *http.Client, address string, now func() time.Time) error {
	var h hello
	if err := post(ctx, client, "https://"+address+helloPath, struct{}{}, &h); err != nil {
		return err
	}
	if d := now().Sub(h.Time); d.Abs() > maxSkew {
		slow := "fast"
		if d < 0 {
			slow = "slow"
		}
		return wire.Errorf(api.CodeRefused, "set the clocks of all hosts, for example with chrony",
			"the clock of this host is %s by %s compared with that of %s; certificates would not be valid", slow, d.Abs().Round(time.Second), address)
	}
	return nil
}

// byFingerprint returns an HTTP client that trusts the authority with the given fingerprint.
func byFingerprint(address, fingerprint string, now func() time.Time) *http.Client {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The standard check needs the authority's certificate, which this host does not have yet.
		// VerifyConnection makes the same check with the certificate that the listener presents.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			// A clock that differs is reported with better words than a certificate that is not valid
			// now. The time of the check is therefore one at which the certificate is valid.
			at := now()
			if leaf := state.PeerCertificates[0]; at.Before(leaf.NotBefore) {
				at = leaf.NotBefore
			}
			_, err := cert.VerifyChain(state, fingerprint, host, at)
			return err
		},
	}
	return client(config)
}

// client returns an HTTP client for one exchange.
func client(config *tls.Config) *http.Client {
	return &http.Client{Timeout: requestLimit, Transport: &http.Transport{
		TLSClientConfig: config, DisableKeepAlives: true,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	}}
}

// post sends a value as JSON, and reads one.
func post(ctx context.Context, client *http.Client, url string, value, into any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("cannot encode the request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("cannot make the request: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return unwrapped(err)
	}
	defer resp.Body.Close()

	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return fmt.Errorf("cannot read the answer: %w", err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(raw, into); err != nil {
			return fmt.Errorf("cannot decode the answer: %w", err)
		}
		return nil
	}

	var refused api.ErrorBody
	if json.Unmarshal(raw, &refused) == nil && refused.Error != nil {
		return refused.Error
	}
	return fmt.Errorf("unexpected answer: %s", resp.Status)
}

// unwrapped removes the method and the URL from an error of package http.
func unwrapped(err error) error {
	for {
		inner := errors.Unwrap(err)
		var op *net.OpError
		if inner == nil || errors.As(err, &op) && errors.Is(op, err) {
			return err
		}
		err = inner
	}
}

// Renew asks the join listeners for new certificates of a host that is in the cluster.
func Renew(ctx context.Context, addresses []string, config *tls.Config, r Request) (Answer, error) {
	var failed []error
	for _, address := range addresses {
		var a Answer
		err := post(ctx, client(config), "https://"+address+renewPath, r, &a)
		if err == nil {
			return a, nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", address, err))
	}
	return Answer{}, fmt.Errorf("cannot renew the certificates of this host: %w", errors.Join(failed...))
}
