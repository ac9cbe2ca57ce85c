package cert

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// signed returns an authority, and a certificate of it with its key.
func signed(t *testing.T, life time.Duration) (*Authority, []byte, []byte) {
	t.Helper()
	ca, err := NewAuthority("c", now)
	if err != nil {
		t.Fatal(err)
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := NewRequest(key, "somebody else")
	if err != nil {
		t.Fatal(err)
	}
	pem, err := ca.Sign(csr, Subject{Name: "h1", Hosts: []string{"10.0.0.1", "db1"}}, now, life)
	if err != nil {
		t.Fatal(err)
	}
	return ca, pem, key
}

func TestSign(t *testing.T) {
	ca, certPEM, key := signed(t, Life)
	if _, err := tls.X509KeyPair(certPEM, key); err != nil {
		t.Error(err)
	}
	leaf, err := Parse(certPEM)
	if err != nil || leaf.Subject.CommonName != "h1" {
		t.Fatalf("%v, %v", leaf, err)
	}

	state := tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf, ca.cert}}
	good := Fingerprint(ca.CertPEM)
	for _, tt := range []struct {
		fingerprint, host string
		at                time.Time
		words             string
	}{
		{good, "10.0.0.1", now, ""},
		{good, "db1", now, ""},
		{good, "10.0.0.2", now, "cannot trust"},
		{strings.Repeat("0", len(good)), "db1", now, "another cluster"},
		{good, "db1", now.Add(Life + time.Minute), "expired"},
		{good, "db1", now.Add(-time.Hour), "not yet valid"},
	} {
		got, err := VerifyChain(state, tt.fingerprint, tt.host, tt.at)
		switch {
		case tt.words == "" && (err != nil || string(got) != string(ca.CertPEM)):
			t.Errorf("%+v: %v", tt, err)
		case tt.words != "" && (err == nil || !strings.Contains(err.Error(), tt.words)):
			t.Errorf("%+v: %v", tt, err)
		}
	}

	other, _, _ := signed(t, Life)
	state.PeerCertificates[1] = other.cert
	if _, err := VerifyChain(state, Fingerprint(other.CertPEM), "db1", now); err == nil {
		t.Error("a certificate of another authority is trusted")
	}
	if _, err := LoadAuthority(ca.CertPEM, other.KeyPEM); err == nil {
		t.Error("an authority with another key is loaded")
	}
}

func TestWords(t *testing.T) {
	_, certPEM, _ := signed(t, Life)
	p, err := PeriodOf(certPEM)
	if err != nil {
		t.Fatal(err)
	}
	if d := p.RenewAt().Sub(now); d < 59*24*time.Hour || d > 60*24*time.Hour {
		t.Errorf("renewed after %s", d)
	}
	for _, tt := range []struct {
		after time.Duration
		want  string
	}{
		{-time.Hour, "is not valid before 2026-05-01T11:50:00Z: a clock is wrong by at least 50 min"},
		{0, ""},
		{65 * 24 * time.Hour, ""},
		{80 * 24 * time.Hour, "ends in 10 days, at 2026-07-30T12:00:00Z, and could not be renewed"},
		{93 * 24 * time.Hour, "ended 3 days ago, at 2026-07-30T12:00:00Z"},
	} {
		if got := p.Words(now.Add(tt.after)); got != tt.want {
			t.Errorf("after %s: %q, want %q", tt.after, got, tt.want)
		}
	}
}
