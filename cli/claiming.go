package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/volmgr/suggest"
)

// withdrawGrace limits how long an interrupted volctl watches its claim.
const withdrawGrace = 3 * time.Second

// claiming is a claim that a command makes and waits for.
type claiming struct {
	volume, alloc string
	req           api.ClaimRequest
	timeout       time.Duration

	// grace is the time to answer after the timeout; 0 means answerGrace.
	grace  time.Duration
	noWait bool
}

// make makes the claim. Without an error, the volume is mounted, unless noWait is set. An error
// says what happened to the claim.
func (c *claiming) make(ctx context.Context, client *apiclient.Client, out *output) (*api.Claim, error) {
	end := c.progress(ctx, client, out)
	claim, stays, err := c.claim(ctx, client)
	end()

	switch {
	case ctx.Err() != nil && err != nil && !c.noWait:
		return nil, c.afterInterrupt(client)
	case err != nil && stays:
		return nil, hinted(err, "the agent was restarted meanwhile, so the claim may still stand: "+c.detachCommand())
	case err != nil:
		return nil, explain(ctx, client, err, c.volume)
	case claim.State != api.ClaimTaken && !c.noWait:
		return nil, &api.Error{Code: api.CodeFailed, Message: "the claim is " + claim.State, Hint: suggest.Command("volctl volume status %s", c.volume)}
	}

	return claim, nil
}

// progress shows the claim's progress. Without a terminal, it does so only with --recursive:
// changing the owner of many files can take minutes although nothing is wrong.
func (c *claiming) progress(ctx context.Context, client *apiclient.Client, out *output) (end func()) {
	if c.noWait || !c.req.Recursive && out.columns() == 0 {
		return func() {}
	}
	return out.during(ctx, fmt.Sprintf("claiming volume %q", c.volume), volumeProgress(client, c.volume, ""))
}

// claim makes the call. If the agent goes away during the call, it is probably being restarted, so
// claim asks again until the timeout. The claim is durable; only the waiting request was lost.
// After that, an answer cannot tell which request made the claim. So the claim may stay after a
// failure.
func (c *claiming) claim(ctx context.Context, client *apiclient.Client) (claim *api.Claim, stays bool, err error) {
	if c.noWait {
		claim, err = client.ClaimVolume(ctx, c.volume, c.alloc, c.req, 0)
		return claim, false, err
	}

	deadline := time.Now().Add(c.timeout)
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(cmp.Or(c.grace, answerGrace)))
	defer cancel()

	for {
		claim, err = client.ClaimVolume(ctx, c.volume, c.alloc, c.req, max(time.Until(deadline), time.Millisecond))
		stays = stays || dropped(err)
		if !stays || codeOf(err) != api.CodeUnreachable || time.Now().After(deadline) {
			return claim, stays, err
		}
		if sleep(ctx, retryEvery) != nil {
			return nil, stays, ctx.Err()
		}
	}
}

// afterInterrupt says what happened to an interrupted claim. When the connection closes, the agent
// withdraws a claim that this call made. volctl watches the claim for a moment, so that the message
// is not a guess.
func (c *claiming) afterInterrupt(client *apiclient.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), withdrawGrace)
	defer cancel()

	for {
		claim, err := client.Claim(ctx, c.volume, c.alloc)
		switch {
		case isNotFound(err):
			return interrupted("it was interrupted, and the claim is withdrawn", "")
		case err == nil && !claim.Wanted:
			return interrupted("it was interrupted; the claim is withdrawn, and its release goes on", suggest.Command("volctl volume status %s", c.volume))
		case err != nil && ctx.Err() == nil:
			return interrupted("it was interrupted; what became of the claim is unknown: "+err.Error(), suggest.Command("volctl claim list --volume %s", c.volume))
		}

		if sleep(ctx, retryEvery/5) != nil {
			return interrupted(fmt.Sprintf("it was interrupted; alloc %q still has a claim, which was there before this call", c.alloc), c.detachCommand())
		}
	}
}

func (c *claiming) detachCommand() string {
	return suggest.Command("volctl volume detach %s %s", c.volume, c.alloc)
}
