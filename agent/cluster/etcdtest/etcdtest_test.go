package etcdtest_test

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
)

// serves reports whether a member of a cluster answers a request within a second.
func serves(c *etcdtest.Cluster, i int, transport http.RoundTripper) bool {
	client := http.Client{Timeout: time.Second, Transport: transport}
	defer client.CloseIdleConnections()
	r, err := client.Post(c.Endpoints()[i]+"/v3/kv/range", "application/json", strings.NewReader(`{"key":"YQ=="}`))
	if err != nil {
		return false
	}
	return r.Body.Close() == nil && r.StatusCode == http.StatusOK
}

// TestCluster checks that a member ends, stops and continues as the methods say.
func TestCluster(t *testing.T) {
	c := etcdtest.Start(t, 3)
	for i := range 3 {
		if !serves(c, i, nil) {
			t.Errorf("member %d does not answer after the start", i)
		}
	}

	first := c.Leader()
	c.Kill(first)
	if serves(c, first, nil) {
		t.Error("the member answers although it was killed")
	}
	if next := c.Leader(); next == first {
		t.Errorf("member %d leads although it was killed", next)
	}
	c.Start(first)
	if !serves(c, first, nil) {
		t.Error("the member does not answer after it was started again")
	}

	c.Freeze(first)
	if serves(c, first, nil) {
		t.Error("the member answers although it is frozen")
	}
	c.Thaw(first)
	c.AwaitReady(first)
	if !serves(c, first, nil) {
		t.Error("the member does not answer after the thaw")
	}
	c.Stop(first)
	if serves(c, first, nil) {
		t.Error("the member answers although it was stopped")
	}
}

// TestTLS checks that a member with TLS answers only clients that have a certificate.
func TestTLS(t *testing.T) {
	ca := etcdtest.NewCA(t)
	c := etcdtest.StartTLS(t, 1, ca)
	pair, err := tls.LoadX509KeyPair(ca.Issue("client"))
	if err != nil {
		t.Fatal(err)
	}
	with := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}
	if !serves(c, 0, &http.Transport{TLSClientConfig: with}) {
		t.Error("the member refuses a client with a certificate")
	}
	without := &tls.Config{InsecureSkipVerify: true}
	if serves(c, 0, &http.Transport{TLSClientConfig: without}) {
		t.Error("the member accepts a client without a certificate")
	}
}
