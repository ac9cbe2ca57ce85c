package runner

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
)

// resolver is a fake SecretResolver. It returns the path of a secret's file as the value of the
// secret.
type resolver struct{}

func (resolver) ResolveSecret(_ context.Context, ref call.SecretRef) (call.Secret, error) {
	if ref.File == "" {
		return call.Secret{}, errors.New("no file")
	}
	return call.NewSecret(ref.File), nil
}

// TestEnv checks that the environment of a part contains expanded variables and the values of
// secrets. The part's mask must hide the secrets.
func TestEnv(t *testing.T) {
	secret := func(file string) plugin.EnvValue {
		return plugin.EnvValue{Secret: &call.SecretRef{File: file}}
	}
	for _, tt := range []struct {
		name    string
		env     map[string]plugin.EnvValue
		secrets SecretResolver
		want    []string
		err     string
	}{
		{"sorted and expanded", map[string]plugin.EnvValue{"B": {Value: "2"}, "A": {Value: "x${NODE_ID}"}}, nil, []string{"A=xnode", "B=2"}, ""},
		{"secret", map[string]plugin.EnvValue{"PW": secret("hunter2hunter2")}, resolver{}, []string{"PW=hunter2hunter2"}, ""},
		{"no resolver", map[string]plugin.EnvValue{"PW": secret("x")}, nil, nil, "cannot resolve secrets"},
		{"unreadable", map[string]plugin.EnvValue{"PW": secret("")}, resolver{}, nil, "no file"},
		{"zero byte", map[string]plugin.EnvValue{"PW": secret("a\x00b")}, resolver{}, nil, "zero byte"},
	} {
		p := Part{
			Definition: &plugin.Definition{Exec: &plugin.Exec{Env: tt.env}}, Mask: &csiclient.Scrubber{}, Secrets: tt.secrets,
			Values: func(name string) string { return map[string]string{"NODE_ID": "node"}[name] },
		}
		got, err := p.Env(t.Context())
		if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, %v", tt.name, got, err)
		}
		if tt.name == "secret" && strings.Contains(p.Mask.Scrub("the password is hunter2hunter2"), "hunter2") {
			t.Errorf("%s: the secret is not hidden", tt.name)
		}
	}
}

// waiting is a fake Progress. Due returns the field due.
type waiting struct {
	Progress
	wake chan struct{}
	due  bool
}

func (w waiting) Wake() <-chan struct{} { return w.wake }
func (w waiting) Due() bool             { return w.due }

// TestWait checks each way in which a wait ends.
func TestWait(t *testing.T) {
	closed, awake := make(chan struct{}), func() chan struct{} { c := make(chan struct{}, 1); c <- struct{}{}; return c }
	close(closed)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name          string
		ctx           context.Context
		p             waiting
		d             time.Duration
		first, second <-chan struct{}
		want          error
	}{
		{"time", t.Context(), waiting{}, time.Millisecond, nil, nil, nil},
		{"first", t.Context(), waiting{}, 0, closed, nil, nil},
		{"second", t.Context(), waiting{}, time.Hour, nil, closed, nil},
		{"ended", over, waiting{}, 0, nil, nil, context.Canceled},
		{"due", t.Context(), waiting{wake: awake(), due: true}, time.Hour, nil, nil, ErrDue},
		{"awake and not due", t.Context(), waiting{wake: awake()}, time.Millisecond, nil, nil, nil},
	} {
		if err := Wait(tt.ctx, tt.p, tt.d, tt.first, tt.second); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}
