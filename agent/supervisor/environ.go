package supervisor

import (
	"context"
	"fmt"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// ownEnv returns the variables that the plugin file sets. The value of a secret goes only into the
// child's environment.
func (p *plugin) ownEnv(ctx context.Context, def *volume.PluginDefinition, value func(string) string) ([]string, error) {
	var env []string
	set := def.Env()
	for _, name := range sortedIDs(set) {
		v := set[name]
		if v.Secret == nil {
			s, err := pluginfile.Expand(v.Value, value)
			if err != nil {
				return nil, fmt.Errorf("cannot expand %s: %w", name, err)
			}

			env = append(env, name+"="+s)
			continue
		}
		if p.s.opts.Secrets == nil {
			return nil, fmt.Errorf("cannot read the secret for %s: this agent resolves none", name)
		}

		secret, err := p.s.opts.Secrets.ResolveSecret(ctx, *v.Secret)
		if err != nil {
			return nil, fmt.Errorf("cannot read the secret for %s: %w", name, err)
		}
		if strings.ContainsRune(secret.Reveal(), 0) {
			return nil, fmt.Errorf("cannot use the secret for %s: it holds a zero byte", name)
		}

		p.scrub.Add(call.Secrets{name: secret})
		env = append(env, name+"="+secret.Reveal())
	}

	return env, nil
}
