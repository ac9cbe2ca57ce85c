package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/volagent/volagent/agent/cluster"
	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/volmgr/shared"
)

// short is a time limit for calls of which a test expects that they fail.
const short = 1500 * time.Millisecond

// put sets a key and returns the error.
func put(ctx context.Context, s shared.Store, key string) error {
	_, err := s.Do(ctx, shared.Txn{Then: []shared.Op{shared.Put(key, []byte("value"))}})
	return err
}

// is fails the test if an error does not wrap another one.
func is(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("the error is %v, want %v", err, want)
	}
}

// isNot fails the test if an error wraps another one.
func isNot(t *testing.T, err, bad error) {
	t.Helper()
	if errors.Is(err, bad) {
		t.Errorf("the error %v wraps %v", err, bad)
	}
}

// unreachable checks that all calls of a store fail with ErrUnreachable, and within the time limit.
func unreachable(t *testing.T, s shared.Store) {
	t.Helper()
	begin := time.Now()
	err := put(t.Context(), s, "k")
	is(t, err, shared.ErrUnreachable)
	isNot(t, err, shared.ErrUnknownOutcome)
	_, err = s.Range(t.Context(), shared.Span{Key: "k"}, 0, 0)
	is(t, err, shared.ErrUnreachable)
	if took := time.Since(begin); took > 3*short {
		t.Errorf("two calls took %v", took)
	}
}

// TestNothingListens checks that the store is opened, and says that the request was not executed.
func TestNothingListens(t *testing.T) {
	unreachable(t, open(t, cluster.Options{Endpoints: []string{"http://127.0.0.1:1"}, Timeout: short}))
}

// TestHangs checks an endpoint that accepts connections and never answers.
func TestHangs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	unreachable(t, open(t, cluster.Options{Endpoints: []string{"http://" + l.Addr().String()}, Timeout: short}))
}

// TestNotEtcd checks an endpoint that is another gRPC server, and one that is no gRPC server.
func TestNotEtcd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	s := open(t, cluster.Options{Endpoints: []string{"http://" + l.Addr().String()}, Timeout: short})
	is(t, put(t.Context(), s, "k"), shared.ErrUnsupported)

	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			c, err := other.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("220 mail.example.org ESMTP\r\n"))
			_ = c.Close()
		}
	}()
	unreachable(t, open(t, cluster.Options{Endpoints: []string{"http://" + other.Addr().String()}, Timeout: short}))
}

// TestFrozen checks that the outcome of a transaction is unknown if the server is frozen, that it is
// executed later, and that DoSure finds that out.
func TestFrozen(t *testing.T) {
	c := etcdtest.Start(t, 1)
	failed := make(chan struct{}, 100) // an attempt to put "sure" has ended
	s := open(t, cluster.Options{Endpoints: c.Endpoints(), Timeout: short, Tap: func(p cluster.Point) {
		if p.After && len(p.Txn.Then) > 0 && p.Txn.Then[0].Key == "sure" {
			failed <- struct{}{}
		}
	}})
	if err := put(t.Context(), s, "before"); err != nil {
		t.Fatal(err)
	}

	c.Freeze(0)
	begin := time.Now()
	err := put(t.Context(), s, "during")
	is(t, err, shared.ErrUnknownOutcome)
	_, err = s.Range(t.Context(), shared.Span{Key: "before"}, 0, 0)
	is(t, err, shared.ErrUnreachable)
	isNot(t, err, shared.ErrUnknownOutcome)
	if took := time.Since(begin); took > 3*short {
		t.Errorf("two calls took %v", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	err = put(ctx, s, "deadline")
	cancel()
	is(t, err, shared.ErrUnknownOutcome)
	is(t, err, context.DeadlineExceeded)

	done := make(chan shared.Result)
	go func() {
		r, err := shared.DoSure(t.Context(), s, shared.Txn{
			If: []shared.Compare{shared.Absent("sure")}, Then: []shared.Op{shared.Put("sure", []byte("mine"))}, Else: []shared.Op{shared.Get("sure")},
		})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	<-failed
	c.Thaw(0)
	r := <-done
	won := r.Done
	if !won && len(r.Reads) == 1 && len(r.Reads[0]) == 1 {
		won = string(r.Reads[0][0].Value) == "mine"
	}
	if !won || !r.Repeated {
		t.Errorf("DoSure returns %+v", r)
	}
}

// TestRestart checks that a store and its watch survive a restart of the only server.
func TestRestart(t *testing.T) {
	c := etcdtest.Start(t, 1)
	s := open(t, cluster.Options{Endpoints: c.Endpoints()})
	ch := s.Watch(t.Context(), []shared.Span{shared.Prefix("w/")}, 1)
	if err := put(t.Context(), s, "w/1"); err != nil {
		t.Fatal(err)
	}
	c.Kill(0)
	slow := open(t, cluster.Options{Endpoints: c.Endpoints(), Timeout: short})
	unreachable(t, slow)
	c.Start(0)
	if err := put(t.Context(), slow, "w/2"); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	c.Stop(0)
	c.Start(0)
	if err := put(t.Context(), s, "w/3"); err != nil {
		t.Errorf("after the second restart: %v", err)
	}
	var keys []string
	for len(keys) < 3 {
		e := <-ch
		if e.Err != nil {
			t.Fatal(e.Err)
		}
		for _, change := range e.Changes {
			keys = append(keys, change.Key)
		}
	}
	if got := strings.Join(keys, " "); got != "w/1 w/2 w/3" {
		t.Errorf("the watch delivers %s", got)
	}
}

// TestLeaderKilled checks that each acknowledged transaction survives, that DoSure executes each
// transaction once, and that no update is lost, while members are killed. (invariant I2)
func TestLeaderKilled(t *testing.T) {
	c := etcdtest.Start(t, 3)
	s := open(t, cluster.Options{Endpoints: c.Endpoints()})
	ctx, cancel := context.WithCancel(t.Context())
	seen, mu := map[string]int{}, sync.Mutex{}
	followed := make(chan error)
	go func() {
		followed <- shared.Follow(ctx, s, []shared.Span{shared.Prefix("n/")}, nil, func(u shared.Update) {
			mu.Lock()
			defer mu.Unlock()
			for _, change := range u.Changes {
				seen[change.Key]++
			}
		})
	}()

	const n = 300
	killed := -1
	for i := range n {
		switch i {
		case 75, 200:
			killed = c.Leader()
			c.Kill(killed)
		case 125, 250:
			c.Launch(killed)
			c.AwaitReady(killed)
		}
		key := fmt.Sprintf("n/%03d", i)
		if _, err := shared.DoSure(t.Context(), s, shared.Txn{If: []shared.Compare{shared.Absent(key)}, Then: []shared.Op{shared.Put(key, nil)}}); err != nil {
			t.Fatalf("transaction %d: %v", i, err)
		}
	}
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == n
	}
	for end := time.Now().Add(30 * time.Second); !all() && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
	}
	cancel()
	is(t, <-followed, context.Canceled)
	if len(seen) != n {
		t.Errorf("the follower saw %d of %d keys", len(seen), n)
	}
	for key, times := range seen {
		if times != 1 {
			t.Errorf("%s changed %d times", key, times)
		}
	}
}

// TestFull checks the error of a full etcd, and that deleting still works.
func TestFull(t *testing.T) {
	c := etcdtest.Start(t, 1, "--quota-backend-bytes=4194304")
	s := open(t, cluster.Options{Endpoints: c.Endpoints()})
	value := make([]byte, 1<<19)
	var failed error
	for i := 0; failed == nil && i < 50; i++ {
		_, failed = s.Do(t.Context(), shared.Txn{Then: []shared.Op{shared.Put(fmt.Sprint("big/", i), value)}})
	}
	is(t, failed, shared.ErrFull)
	is(t, failed, shared.ErrUnknownOutcome)
	_, err := s.Grant(t.Context(), time.Minute)
	is(t, err, shared.ErrFull)
	isNot(t, err, shared.ErrUnknownOutcome)
	begin := time.Now()
	_, err = shared.DoSure(t.Context(), s, shared.Txn{Then: []shared.Op{shared.Put("k", nil)}})
	is(t, err, shared.ErrFull)
	if time.Since(begin) > 5*time.Second {
		t.Error("DoSure sends the transaction again although etcd is full")
	}
	if _, err := s.Do(t.Context(), shared.Txn{Then: []shared.Op{{Kind: shared.OpDelete, Span: shared.Prefix("big/")}}}); err != nil {
		t.Errorf("cannot delete: %v", err)
	}
}

// TestPassword checks the login, wrong passwords, and access to other keys.
func TestPassword(t *testing.T) {
	c := etcdtest.Start(t, 1, "--auth-token-ttl=2")
	c.EnableAuth("agent", "secret", "mine/")
	password := "secret"
	with := func(user, prefix string) cluster.Options {
		return cluster.Options{Endpoints: c.Endpoints(), User: user, Password: func() (string, error) { return password, nil }, Prefix: prefix, Timeout: short}
	}
	s := open(t, with("agent", "mine"))
	if err := put(t.Context(), s, "k"); err != nil {
		t.Fatal(err)
	}
	other := open(t, with("agent", "other"))
	err := put(t.Context(), other, "k")
	is(t, err, shared.ErrDenied)
	isNot(t, err, shared.ErrUnreachable)
	for e := range other.Watch(t.Context(), []shared.Span{{Key: "k"}}, 1) {
		is(t, e.Err, shared.ErrDenied)
	}
	is(t, put(t.Context(), open(t, cluster.Options{Endpoints: c.Endpoints(), Prefix: "mine"}), "k"), shared.ErrDenied)

	// A restart of etcd makes all tokens invalid. The store then logs in again.
	ch := s.Watch(t.Context(), []shared.Span{{Key: "k"}}, 1)
	if e := <-ch; e.Err != nil || len(e.Changes) != 1 {
		t.Fatalf("the watch delivers %+v", e)
	}
	c.Stop(0)
	c.Start(0)
	if err := put(t.Context(), s, "k"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if e := <-ch; e.Err != nil || len(e.Changes) != 1 {
		t.Errorf("after a restart, the watch delivers %+v", e)
	}
	password = "wrong"
	is(t, put(t.Context(), open(t, with("agent", "mine")), "k"), shared.ErrDenied)
	is(t, put(t.Context(), open(t, with("stranger", "mine")), "k"), shared.ErrDenied)
}

// TestTLS checks connections with certificates, and the error if one side refuses the other.
func TestTLS(t *testing.T) {
	ca, foreign := etcdtest.NewCA(t), etcdtest.NewCA(t)
	c := etcdtest.StartTLS(t, 1, ca)
	cert, key := ca.Issue("agent")
	good := cluster.Options{Endpoints: c.Endpoints(), CA: ca.File, Cert: cert, Key: key, Timeout: short}
	if err := put(t.Context(), open(t, good), "k"); err != nil {
		t.Fatal(err)
	}

	server := good
	server.CA = foreign.File
	err := put(t.Context(), open(t, server), "k")
	is(t, err, shared.ErrDenied)
	isNot(t, err, shared.ErrUnknownOutcome)

	none := good
	none.Cert, none.Key = "", ""
	is(t, put(t.Context(), open(t, none), "k"), shared.ErrDenied)

	wrong := good
	wrong.Cert, wrong.Key = foreign.Issue("agent")
	is(t, put(t.Context(), open(t, wrong), "k"), shared.ErrDenied)
}
