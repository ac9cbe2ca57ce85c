package cluster_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/volagent/volagent/agent/api"
)

// chronicle records the requests of the clients of a cluster with their answers, and judges them at the end. The clients may
// use it concurrently.
type chronicle struct {
	test  testing.TB
	begun time.Time

	mu      sync.Mutex
	history []porcupine.Operation
	tokens  []seenToken
	outages []span
	failed  []string
}

func newChronicle(t testing.TB) *chronicle { return &chronicle{test: t, begun: time.Now()} }

// span is a time during which etcd or an agent did not run. It lasts until every host uses the cluster
// again.
type span struct{ from, to int64 }

// seenToken is the token of a hold that a status showed.
type seenToken struct {
	span
	volume, host, token string
}

// now returns the time since the begin of the history.
func (c *chronicle) now() int64 { return time.Since(c.begun).Nanoseconds() }

// record adds a request with its answer to the history.
func (c *chronicle) record(client int, q request, a answer, from, to int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	during := func(s span) bool { return from <= s.to && s.from <= to }
	a.keeps = a.keeps || slices.ContainsFunc(c.outages, during)
	c.history = append(c.history, porcupine.Operation{ClientId: client, Input: q, Output: a, Call: from, Return: to})
}

// beginOutage begins an outage, which lasts until the returned function is called.
func (c *chronicle) beginOutage() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := len(c.outages)
	c.outages = append(c.outages, span{c.now(), 1 << 62})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.outages[at].to = c.now()
	}
}

// sight returns the holds that a status shows, and remembers their tokens.
func (c *chronicle) sight(volume string, holds []api.Hold, during span) (seen []sighted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range holds {
		seen = append(seen, sighted{hostNumber(h.Host), h.AccessMode, h.Reader})
		c.tokens = append(c.tokens, seenToken{during, volume, h.Host, h.Token})
	}
	return seen
}

// fail records an error of a client.
func (c *chronicle) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = append(c.failed, fmt.Sprintf(format, args...))
}

// check reports the errors of the clients, and gives the history to the checker. If the checker rejects
// it, check logs the requests around the reason.
func (c *chronicle) check() {
	c.test.Helper()
	for _, text := range c.failed {
		c.test.Error(text)
	}
	kinds := map[string]int{}
	for _, o := range c.history {
		kinds[fmt.Sprintf("%s %t", o.Input.(request).kind, o.Output.(answer).done)]++
	}
	c.test.Logf("%d operations in %s: %v", len(c.history), time.Since(c.begun).Round(time.Second), kinds)

	result, info := porcupine.CheckOperationsVerbose(holdModel(), c.history, 2*time.Minute)
	if result == porcupine.Ok {
		return
	}
	model := holdModel()
	for i, part := range info.PartialLinearizationsOperations() {
		longest := slices.MaxFunc(part, func(a, b []porcupine.Operation) int { return len(a) - len(b) })
		c.explain(model.Partition(c.history)[i], longest)
	}
	c.test.Errorf("the checker says %s", result)
}

// explain logs the longest sequence of requests that the model accepts, and the requests around its
// end. It logs nothing if the sequence contains all requests.
func (c *chronicle) explain(all, accepted []porcupine.Operation) {
	c.test.Helper()
	if len(all) == len(accepted) {
		return
	}
	model := holdModel()
	line := func(o porcupine.Operation) string {
		return fmt.Sprintf("%9.3f to %9.3f ms: %s", float64(o.Call)/1e6, float64(o.Return)/1e6, model.DescribeOperation(o.Input, o.Output))
	}
	state := model.Init()
	seen := map[string]bool{}
	for i, o := range accepted {
		_, state = model.Step(state, o.Input, o.Output)
		seen[line(o)] = true
		if i > len(accepted)-20 {
			c.test.Logf("accepted %s\n    state %+v", line(o), state)
		}
	}
	rest := 0
	for _, o := range all {
		if !seen[line(o)] && rest < 20 {
			c.test.Logf("not accepted %s", line(o))
			rest++
		}
	}
}

// checkTokens checks that no host has shown an older token of a volume after a newer one. Of the given
// volumes, which have single-node modes only, the tokens grow over all hosts.
func (c *chronicle) checkTokens(single ...string) {
	c.test.Helper()
	for _, x := range c.tokens {
		for _, y := range c.tokens {
			same := x.volume == y.volume && (x.host == y.host || slices.Contains(single, x.volume))
			if same && x.to < y.from && tokenBefore(y.token, x.token) {
				c.test.Errorf("%s shows token %s of %s, and %s later showed %s", x.volume, x.token, x.host, y.host, y.token)
			}
		}
	}
}

// named matches a host that a refusal names as the user of a volume.
var named = regexp.MustCompile(`(?:held by host "|used in mode [a-z-]+ by host )(h\d)`)

// namedHolders returns the hosts that a refusal names as users of the volume.
func namedHolders(err error) (hosts []int) {
	var e *api.Error
	if !errors.As(err, &e) {
		return nil
	}
	for _, m := range named.FindAllStringSubmatch(e.Message, -1) {
		hosts = append(hosts, hostNumber(m[1]))
	}
	return hosts
}

// hostNumber returns the number of a host, from 0.
func hostNumber(name string) int { return int(name[1] - '1') }
