package join

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/etcd/cert"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/token"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// TestClocks checks that a host whose clock differs is refused with words about the clock, and not
// about a certificate.
func TestClocks(t *testing.T) {
	dir := hostdir.Dir{Data: t.TempDir()}
	state := hostdir.State{Host: wire.Host{Name: "h1", Address: "127.0.0.1"}, ClusterID: "c", Life: time.Hour}
	ca, err := cert.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := cert.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := cert.NewRequest(key, "h1")
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Sign(csr, cert.Subject{Name: "h1", Hosts: state.Names()}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{hostdir.CACert: ca.CertPEM, hostdir.HostCert: leaf, hostdir.HostKey: key} {
		if err := dir.Write(name, data); err != nil {
			t.Fatal(err)
		}
	}

	r := &Registrar{Dir: dir, State: func() hostdir.State { return state }, Now: time.Now}
	l, err := Listen("127.0.0.1:0", r, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })

	for skew, words := range map[time.Duration]string{
		-2 * time.Hour:   "the clock of this host is slow by 2h0m0s",
		20 * time.Minute: "the clock of this host is fast by 20m0s",
		0:                "cannot be the name of a host", // the request reaches the registrar
	} {
		now := func() time.Time { return time.Now().Add(skew) }
		tok := token.Token{Endpoints: []string{l.Address()}, Fingerprint: cert.Fingerprint(ca.CertPEM), ID: "i", Secret: "s"}
		_, err := Ask(t.Context(), tok, Request{}, now)
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("with a skew of %s: %v, want %q", skew, err, words)
		}
	}
}
