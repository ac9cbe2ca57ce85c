package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/volagent/volagent/volmgr/shared"
)

// login gets tokens from etcd and adds them to calls. The etcd client would log in while it is
// created, and so would need a reachable etcd.
type login struct {
	user     string
	password func() (string, error)
	client   pb.AuthClient
	token    atomic.Pointer[string] // nil before the login
}

// GetRequestMetadata returns the token, for gRPC.
func (l *login) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if t := l.token.Load(); t != nil && *t != "" {
		return map[string]string{rpctypes.TokenFieldNameGRPC: *t}, nil
	}
	return nil, nil
}

// RequireTransportSecurity reports that tokens may go over connections without TLS, for gRPC. The
// configuration decides about TLS.
func (l *login) RequireTransportSecurity() bool { return false }

// ensure logs in if that was not done yet.
func (l *login) ensure(ctx context.Context) error {
	if l.user == "" || l.token.Load() != nil {
		return nil
	}
	return l.renew(ctx)
}

// renew logs in. Without a user, there is nothing to renew, so the next call gets the same answer
// unless the users of etcd were changing.
func (l *login) renew(ctx context.Context) error {
	if l.user == "" {
		return nil
	}
	l.token.Store(nil) // a request with an invalid token is refused, also one for a login
	password, err := "", error(nil)
	if l.password != nil {
		password, err = l.password()
	}
	if err != nil {
		return fmt.Errorf("%w: cannot read the password: %w", shared.ErrDenied, err)
	}

	r, err := l.client.Authenticate(ctx, &pb.AuthenticateRequest{Name: l.user, Password: password}, callOptions()...)
	token := r.GetToken()
	if errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled) {
		token, err = "", nil // etcd accepts everyone
	}
	if err != nil {
		return notExecuted(classify(err, false))
	}
	l.token.Store(&token)
	return nil
}
