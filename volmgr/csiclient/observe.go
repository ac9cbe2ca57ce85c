package csiclient

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/volmgr/call"
)

// began tells the observer that the client sends a call, and returns the start time.
func (c *Client) began(step call.Method) (since time.Time) {
	if c.opts.Observer != nil {
		c.opts.Observer.Began(string(step))
		since = time.Now()
	}
	return since
}

// ended tells the observer that a call has ended, and with which code. It replaces a code that gRPC
// does not define with Unknown. Otherwise a plugin that invents codes could create an unlimited
// number of metrics.
func (c *Client) ended(step call.Method, since time.Time, err error) {
	if c.opts.Observer == nil {
		return
	}

	code := status.Code(err)
	if code > codes.Unauthenticated {
		code = codes.Unknown
	}
	c.opts.Observer.Ended(string(step), code.String(), time.Since(since))
}
