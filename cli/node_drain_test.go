package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

func draining(answers ...*api.Drain) *fake {
	f := world()
	n := 0
	f.on["POST /v1/node/drain"] = func(*http.Request) (any, error) {
		d := answers[min(n, len(answers)-1)]
		n++
		if d == nil {
			return nil, context.Canceled // the fake agent closes the connection
		}
		return d, nil
	}
	return f
}

var (
	occupied = &api.Drain{
		Waiting: []api.Occupant{{Volume: "data", Alloc: "web.service", Owner: "web.service (pid 5, nginx)", Message: "its owner must be stopped first", Command: "systemctl stop web.service"}},
		Left:    []api.Occupant{{Volume: "logs", Alloc: "manual", Message: "detaching, plugin unavailable", Command: "volctl plugin start s3", Else: "volctl volume detach logs manual --without-plugin=umount"}, {Message: "/x is mounted", Command: "umount /x"}},
	}
	emptied = &api.Drain{Safe: true, Waiting: []api.Occupant{}, Left: []api.Occupant{}}
)

const toBeStopped = `to be stopped by you:
  data  web.service  web.service (pid 5, nginx)  → systemctl stop web.service
`

func TestNodeDrain(t *testing.T) {
	const safe, stays = "safe to power off\n", `still on this host:
  logs  manual  detaching, plugin unavailable  → volctl plugin start s3; else: volctl volume detach logs manual --without-plugin=umount
  -     -       /x is mounted                  → umount /x
`
	for _, tt := range []struct {
		name, args string
		answers    []*api.Drain
		code       int
		out, err   string
	}{
		{"at once", "node drain", []*api.Drain{emptied}, 0, safe, ""},
		{"after a wait", "node drain", []*api.Drain{occupied, occupied, emptied}, 0, safe, toBeStopped},
		{"over a restart of the agent", "node drain", []*api.Drain{occupied, nil, nil, emptied}, 0, safe, toBeStopped},
		{"no wait", "node drain --deadline 0", []*api.Drain{occupied}, 5, toBeStopped + stays,
			"volctl: cannot drain this host: it has not finished after 0s: 1 claim held by a live owner, 2 more still on this host; the host stays drained\n"},
		{"the deadline", "node drain --deadline 1ms", []*api.Drain{occupied}, 5, "still " + toBeStopped + stays, toBeStopped + "volctl: cannot drain this host: it has not finished after 1ms"},
		{"ids", "node drain --deadline 0 -q", []*api.Drain{occupied}, 5, "data\nlogs\n", "it has not finished"},
		{"for a program", "node drain -o json", []*api.Drain{occupied, emptied}, 0, "{\n  \"safe\": true,\n  \"waiting\": [],\n  \"left\": []\n}\n", ""},
		{"a deadline in the past", "node drain --deadline -1s", []*api.Drain{emptied}, 2, "", "is in the past"},
	} {
		res := with(t, draining(tt.answers...)).volctl(strings.Fields(tt.args)...)
		if res.code != tt.code || res.stdout != tt.out || !strings.Contains(res.stderr, tt.err) || tt.err == "" && res.stderr != "" {
			t.Errorf("%s: exit %d\n%s%s", tt.name, res.code, res.stdout, res.stderr)
		}
	}
}

// TestNodeDrainInterrupted checks the error if the user interrupts a drain. The error must say that
// the host is still being drained.
func TestNodeDrainInterrupted(t *testing.T) {
	f := draining(occupied)
	first := f.on["POST /v1/node/drain"]
	ctx, cancel := context.WithCancel(t.Context())
	f.on["POST /v1/node/drain"] = func(req *http.Request) (any, error) {
		if req.URL.RawQuery == "" {
			return first(req)
		}
		cancel()
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	r := with(t, f)
	r.ctx = ctx
	if res := r.volctl("node", "drain"); res.code != 1 || !strings.Contains(res.stderr, "it was interrupted; the host stays drained") || !strings.Contains(res.stderr, "volctl node undrain") {
		t.Errorf("got %+v", res)
	}
}

func TestNodeUndrain(t *testing.T) {
	for was, want := range map[bool]string{true: "claims are accepted again\n", false: "nothing to do\n"} {
		f := world()
		f.on["POST /v1/node/undrain"] = answers(api.Undrained{WasDraining: was})
		if res := with(t, f).volctl("node", "undrain"); res.code != 0 || res.stdout != want {
			t.Errorf("got %+v", res)
		}
	}
}

func TestNodeStatusDraining(t *testing.T) {
	for want, d := range map[string]*api.Drain{
		"  Drain    safe to power off   → volctl node undrain\n":                                     emptied,
		"  Drain    1 claim held by a live owner, 2 more still on this host   → volctl node drain\n": occupied,
	} {
		f := world()
		f.node.Draining, f.node.Drain = true, d
		if res := with(t, f).volctl("node", "status"); !strings.Contains(res.stdout, "DB ok   draining\n"+want) {
			t.Errorf("got %+v", res)
		}
	}
}
