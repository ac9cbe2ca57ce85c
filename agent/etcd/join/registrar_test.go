package join

import (
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// TestTokenFirst checks that a request without a right token is refused at once, also while another host
// joins. Otherwise any program that reaches the port could delay the hosts of the operator.
func TestTokenFirst(t *testing.T) {
	client := member.New(etcdtest.Start(t, 1).Endpoints(), nil)
	t.Cleanup(client.Close)
	host := wire.Host{Name: "h2", Address: "10.0.0.2", ClientPort: 1, PeerPort: 2, JoinPort: 3}
	r := &Registrar{
		State: func() hostdir.State { return hostdir.State{} }, Client: func() *member.Client { return client }, Now: time.Now,
	}

	r.one.Lock() // another host joins
	defer r.one.Unlock()
	for _, id := range []string{"unknown", strings.Repeat("x", 1000)} {
		answered := make(chan error, 1)
		go func() {
			_, err := r.Admit(t.Context(), Request{ID: id, Secret: "s", Host: host})
			answered <- err
		}()
		select {
		case err := <-answered:
			if err == nil || !strings.Contains(err.Error(), "does not know this join token") {
				t.Errorf("a request with the token %.10q: %v", id, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("a request with the token %.10q waits for another host", id)
		}
	}
}
