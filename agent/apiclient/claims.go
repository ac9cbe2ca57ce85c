package apiclient

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/volagent/volagent/agent/api"
)

// ClaimFilter narrows a list of claims; what is empty is not looked at.
type ClaimFilter struct {
	Volume, Alloc, Plugin string
}

// ReleaseOptions say how a claim is released.
type ReleaseOptions struct {
	// Wait is how long the agent waits for the release; 0 answers at once.
	Wait time.Duration
	// Force unmounts under an owner that is alive.
	Force bool
	// WithoutPlugin has the host unmount by itself: "umount", "force" or "lazy"
	// say how far it may go. Empty asks the plugin.
	WithoutPlugin string
}

// Claims lists claims.
func (c *Client) Claims(ctx context.Context, f ClaimFilter) ([]api.Claim, error) {
	query := url.Values{}
	for name, value := range map[string]string{"volume": f.Volume, "alloc": f.Alloc, "plugin": f.Plugin} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return list[api.Claim](ctx, c, call{method: http.MethodGet, path: []string{"claims"}, query: query})
}

// Claim returns the claim of an alloc on a volume.
func (c *Client) Claim(ctx context.Context, volume, alloc string) (*api.Claim, error) {
	return get[api.Claim](ctx, c, call{method: http.MethodGet, path: []string{"volumes", volume, "claims", alloc}})
}

// ClaimVolume claims a volume for an alloc and waits for its mount, up to wait;
// with 0 it answers at once. Where the call waits, a claim that it made is
// withdrawn when the wait ends without a mount, and when ctx ends.
func (c *Client) ClaimVolume(ctx context.Context, volume, alloc string, req api.ClaimRequest, wait time.Duration) (*api.Claim, error) {
	return get[api.Claim](ctx, c, call{method: http.MethodPut, path: []string{"volumes", volume, "claims", alloc}, query: waiting(wait), body: req})
}

// ReleaseClaim gives a claim up. With a wait the claim is gone when it returns
// without an error; without one the release goes on.
func (c *Client) ReleaseClaim(ctx context.Context, volume, alloc string, o ReleaseOptions) error {
	_, err := c.Release(ctx, volume, alloc, o)
	return err
}

// Release is ReleaseClaim, and tells what is left behind.
func (c *Client) Release(ctx context.Context, volume, alloc string, o ReleaseOptions) (*api.Done, error) {
	query := waiting(o.Wait)
	if o.Force {
		query.Set("force", "true")
	}
	if o.WithoutPlugin != "" {
		query.Set("without_plugin", o.WithoutPlugin)
	}
	return get[api.Done](ctx, c, call{method: http.MethodDelete, path: []string{"volumes", volume, "claims", alloc}, query: query})
}

func waiting(wait time.Duration) url.Values {
	if wait <= 0 {
		return url.Values{}
	}
	return url.Values{"wait": {wait.String()}}
}
