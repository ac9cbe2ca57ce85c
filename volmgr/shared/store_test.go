package shared_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volagent/volagent/volmgr/shared"
)

// answers is a Store that gives one answer after the other to transactions, and repeats the last one.
type answers struct {
	shared.Store
	errs []error
	sent int
}

func (s *answers) Do(context.Context, shared.Txn) (shared.Result, error) {
	err := s.errs[min(s.sent, len(s.errs)-1)]
	s.sent++
	return shared.Result{Done: err == nil}, err
}

// TestDoSure checks that DoSure repeats a transaction whose answer was lost, and that a refusal after that
// ends it. Otherwise a host whose lease has ended meanwhile would repeat its registration forever.
func TestDoSure(t *testing.T) {
	for name, c := range map[string]struct {
		errs    []error
		sent    int
		want    error
		unknown bool
	}{
		"an answer":                          {[]error{nil}, 1, nil, false},
		"a lost answer":                      {[]error{shared.ErrUnknownOutcome, nil}, 2, nil, false},
		"no connection after a lost answer":  {[]error{shared.ErrUnknownOutcome, shared.ErrUnreachable, nil}, 3, nil, false},
		"no connection":                      {[]error{shared.ErrUnreachable}, 1, shared.ErrUnreachable, false},
		"a full store":                       {[]error{shared.ErrUnknownOutcome, errors.Join(shared.ErrFull, shared.ErrUnknownOutcome)}, 2, shared.ErrFull, true},
		"a refusal":                          {[]error{shared.ErrLeaseGone}, 1, shared.ErrLeaseGone, false},
		"an ended lease after a lost answer": {[]error{shared.ErrUnknownOutcome, shared.ErrLeaseGone}, 2, shared.ErrLeaseGone, true},
		"a refusal after a lost answer":      {[]error{shared.ErrUnknownOutcome, shared.ErrDenied}, 2, shared.ErrDenied, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				s := &answers{errs: c.errs}
				_, err := shared.DoSure(ctx, s, shared.Txn{})
				if s.sent != c.sent || !errors.Is(err, c.want) || errors.Is(err, shared.ErrUnknownOutcome) != c.unknown {
					t.Errorf("DoSure has sent %d transactions, and returns %v", s.sent, err)
				}
			})
		})
	}
}
