package command

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// withdrawGrace limits how long an interrupted volctl waits for the agent to withdraw the claim.
const withdrawGrace = 3 * time.Second

// Claiming describes a claim that a command requests and waits for.
type Claiming struct {
	Volume, Alloc string
	Request       api.ClaimRequest
	Timeout       time.Duration

	// Grace is how long volctl waits for an answer after the timeout. 0 means AnswerGrace.
	Grace  time.Duration
	NoWait bool
}

// Make requests the claim and waits until the volume is mounted, unless NoWait is set. An error
// says whether the claim may still exist.
func (c *Claiming) Make(ctx context.Context, client *apiclient.Client, out *output.Printer) (*api.Claim, error) {
	end := c.progress(ctx, client, out)
	claim, stays, err := c.claim(ctx, client)
	end()

	switch {
	case ctx.Err() != nil && err != nil && !c.NoWait:
		return nil, c.afterInterrupt(client)
	case err != nil && stays:
		return nil, Hinted(err, "the agent was restarted meanwhile, so the claim may still exist: "+c.detachCommand())
	case err != nil:
		return nil, Explain(ctx, client, err, c.Volume)
	case claim.State != api.ClaimMounted && !c.NoWait:
		return nil, &api.Error{Code: api.CodeFailed, Message: "the claim is " + claim.State, Hint: suggest.Command("volctl volume status %s", c.Volume)}
	}

	return claim, nil
}

// progress shows the progress of the claim. Without a terminal, it shows progress only for
// --recursive, because a change of the owner of many files can take minutes.
func (c *Claiming) progress(ctx context.Context, client *apiclient.Client, out *output.Printer) (end func()) {
	if c.NoWait || !c.Request.Recursive && out.Columns() == 0 {
		return func() {}
	}
	return out.During(ctx, fmt.Sprintf("claiming volume %q", c.Volume), VolumeProgress(client, c.Volume, ""))
}

// claim sends the request to the agent. A broken connection probably means that the agent restarts,
// so claim repeats the request until the timeout. After a broken connection, the result stays is
// true: a request may have made the claim, and the claim may remain even if the command fails.
func (c *Claiming) claim(ctx context.Context, client *apiclient.Client) (claim *api.Claim, stays bool, err error) {
	if c.NoWait {
		claim, err = client.ClaimVolume(ctx, c.Volume, c.Alloc, c.Request, 0)
		return claim, false, err
	}

	deadline := time.Now().Add(c.Timeout)
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(cmp.Or(c.Grace, AnswerGrace)))
	defer cancel()

	for {
		claim, err = client.ClaimVolume(ctx, c.Volume, c.Alloc, c.Request, max(time.Until(deadline), time.Millisecond))
		stays = stays || Dropped(err)
		if !stays || CodeOf(err) != api.CodeUnreachable || time.Now().After(deadline) {
			return claim, stays, err
		}
		if Sleep(ctx, RetryEvery) != nil {
			return nil, stays, ctx.Err()
		}
	}
}

// afterInterrupt returns the error for an interrupted claim. When the connection closes, the agent
// withdraws the claim, unless the claim existed before the request. To find out whether the claim
// still exists, afterInterrupt watches it for a few seconds.
func (c *Claiming) afterInterrupt(client *apiclient.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), withdrawGrace)
	defer cancel()

	for {
		claim, err := client.Claim(ctx, c.Volume, c.Alloc)
		switch {
		case IsNotFound(err):
			return Interrupted("it was interrupted, and the claim is withdrawn", "")
		case err == nil && !claim.Wanted:
			return Interrupted("it was interrupted; the claim is withdrawn, and its detach continues", suggest.Command("volctl volume status %s", c.Volume))
		case err != nil && ctx.Err() == nil:
			return Interrupted("it was interrupted; cannot read the state of the claim: "+err.Error(), suggest.Command("volctl claim list --volume %s", c.Volume))
		}

		if Sleep(ctx, RetryEvery/5) != nil {
			return Interrupted(fmt.Sprintf("it was interrupted; alloc %q still has a claim, which was there before this call", c.Alloc), c.detachCommand())
		}
	}
}

func (c *Claiming) detachCommand() string {
	return suggest.Command("volctl volume detach %s %s", c.Volume, c.Alloc)
}
