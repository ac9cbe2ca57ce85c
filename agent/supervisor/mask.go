package supervisor

import (
	"context"
	"sync"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
	"github.com/volagent/volagent/volmgr/plugin"
)

// mask removes the secrets of a part from texts.
type mask struct {
	csiclient.Scrubber
	learn sync.Once
}

// hide returns a function that removes secrets from the plugin's output. The function also removes
// the secrets that an earlier agent passed to the plugin, if this agent can still read them.
func (m *mask) hide(e *env, id string, def *plugin.Definition) func(string) string {
	if def != nil {
		m.Unmask(def.UnmaskedSecrets...)
	}

	m.learn.Do(func() {
		if e.opts.Known != nil {
			for _, secrets := range e.opts.Known(id) {
				m.Add(secrets)
			}
		}

		if def == nil || e.opts.Secrets == nil {
			return
		}

		for name, v := range def.Env() {
			if v.Secret == nil {
				continue
			}
			if secret, err := e.opts.Secrets.ResolveSecret(context.Background(), *v.Secret); err == nil {
				m.Add(call.Secrets{name: secret})
			}
		}
	})

	return m.Scrub
}
