package cluster_test

import (
	"net"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster"
)

// TestReturnApart lets many hosts wait for an etcd that is down. When it comes back, they do not all connect at
// the same moment, although all of them began to wait at the same moment.
func TestReturnApart(t *testing.T) {
	const hosts, apart = 40, 100 * time.Millisecond
	down, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := down.Addr().String()
	if err := down.Close(); err != nil {
		t.Fatal(err)
	}
	for range hosts {
		s := open(t, cluster.Options{Endpoints: []string{"http://" + address}})
		go func() { _ = put(t.Context(), s, "k") }() // nothing answers
	}

	time.Sleep(3 * time.Second) // the hosts now try once a second
	up, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	var arrivals []time.Time
	for range hosts {
		conn, err := up.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() // a host whose connection ends would connect again
		arrivals = append(arrivals, time.Now())
	}
	// A busy machine delays a few of them.
	if most := arrivals[hosts*9/10].Sub(arrivals[hosts/10]); most < apart {
		t.Errorf("most of the hosts connect within %v", most)
	}
}
