package daemon

import (
	"os"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/etcd/cert"
	"github.com/volagent/volagent/agent/etcd/hostdir"
	"github.com/volagent/volagent/agent/etcd/member"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// TestKeep checks that a host whose state could not be stored learns the new members with the next
// attempt: its state and its client change together, or not at all.
func TestKeep(t *testing.T) {
	dir := hostdir.Dir{Data: t.TempDir()}
	ca, err := cert.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Write(hostdir.CACert, ca.CertPEM); err != nil {
		t.Fatal(err)
	}
	state := hostdir.State{Host: wire.Host{Name: "h1", Address: "10.0.0.1", ClientPort: 2379}, Role: wire.RoleMember}
	client, err := member.Connect(dir, state)
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{dir: dir, state: state, client: client}
	t.Cleanup(func() { d.Client().Close() })
	grow := func(s *hostdir.State) {
		s.Members = []hostdir.Peer{{Name: "h2", Client: "https://10.0.0.2:2379", Voter: true}}
	}

	obstacle := dir.Path("member.json.new") // the file that a save writes first
	if err := os.Mkdir(obstacle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.keep(grow); err == nil {
		t.Fatal("the save succeeded, so this test shows nothing")
	}
	if len(d.State().Members) != 0 || d.Client() != client {
		t.Errorf("after a failed save: %+v", d.State().Members)
	}

	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	if err := d.keep(grow); err != nil {
		t.Fatal(err)
	}
	if len(d.State().Members) != 1 || d.Client() == client {
		t.Errorf("after the next save, the host knows %+v, and has another client: %t", d.State().Members, d.Client() != client)
	}
	stored, err := dir.Load()
	if err != nil || len(stored.Members) != 1 {
		t.Errorf("stored: %+v, %v", stored.Members, err)
	}
}
