package clean

import (
	"context"
	"fmt"
	"slices"

	"github.com/volagent/volagent/volmgr/backoff"
	"github.com/volagent/volagent/volmgr/shared"
	"github.com/volagent/volagent/volmgr/volume"
)

// examination is the part of a pass that looks for keys which contradict each other.
type examination struct{ *Cleaner }

// examine looks for keys that contradict each other. It changes nothing.
func (c examination) examine(ctx context.Context) error {
	k := keys{nodes: map[string]bool{}, holds: map[[2]string]shared.Hold{}, calls: map[string]bool{}}
	// A hold and its use change together. The reads are at different revisions, so a contradiction
	// counts only if a second look shows it too.
	first, err := c.contradictions(ctx, k)
	if err != nil || len(first) == 0 {
		c.setFindings(first)
		return err
	}

	backoff.Pause(ctx, c.retry())
	k = keys{nodes: map[string]bool{}, holds: map[[2]string]shared.Hold{}, calls: map[string]bool{}}
	second, err := c.contradictions(ctx, k)
	if err == nil {
		c.setFindings(slices.DeleteFunc(second, func(f string) bool { return !slices.Contains(first, f) }))
	}
	return err
}

// setFindings stores the findings, and logs the new ones.
func (c examination) setFindings(found []string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, f := range found {
		if !slices.Contains(c.findings, f) {
			c.Log.Warn("the cluster's keys need a look: " + f)
		}
	}
	c.findings = found
}

// keys contains the keys that the search for contradictions has read.
type keys struct {
	nodes map[string]bool
	holds map[[2]string]shared.Hold // by host and volume
	calls map[string]bool
}

// contradictions returns a description of each contradiction.
func (c examination) contradictions(ctx context.Context, k keys) (found []string, err error) {
	if err := each(ctx, c.Store, shared.Nodes(), func(e shared.Entry[shared.Node]) error {
		node, _ := shared.LastID(e.Key)
		k.nodes[node] = true
		return nil
	}); err != nil {
		return nil, err
	}
	if err := each(ctx, c.Store, shared.Calls(), func(e shared.Entry[shared.Call]) error {
		id, _ := shared.LastID(e.Key)
		k.calls[id] = true
		return nil
	}); err != nil {
		return nil, err
	}
	if err := each(ctx, c.Store, shared.Holds(), func(e shared.Entry[shared.Hold]) error {
		node, id, _ := shared.HoldIDs(e.Key)
		k.holds[[2]string{node, id}] = e.Value
		if !k.nodes[node] {
			found = append(found, fmt.Sprintf("host %q holds volume %q, and is not registered", node, id))
		}
		return nil
	}); err != nil {
		return nil, err
	}

	if err := each(ctx, c.Store, shared.Uses(), func(e shared.Entry[shared.Use]) error {
		id, _ := shared.LastID(e.Key)
		if h := e.Value.Holder; h != "" && k.holds[[2]string{h, id}].Operation == "" {
			found = append(found, fmt.Sprintf("volume %q shows host %q as its holder, and the host has no hold", id, h))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := each(ctx, c.Store, shared.AllUsers(), func(e shared.Entry[shared.User]) error {
		id, node, _ := shared.HoldIDs(e.Key)
		if k.holds[[2]string{node, id}].Operation == "" {
			found = append(found, fmt.Sprintf("volume %q shows host %q as a user, and the host has no hold", id, node))
		}
		return nil
	}); err != nil {
		return nil, err
	}

	err = each(ctx, c.Store, shared.Volumes(), func(e shared.Entry[shared.Definition]) error {
		id, _ := shared.LastID(e.Key)
		state := e.Value.Volume.Provision
		if state != volume.Provisioned && !k.calls[id] {
			found = append(found, fmt.Sprintf("volume %q is %s, and no host makes the call; repeat it", id, state))
		}
		return nil
	})
	return found, err
}
