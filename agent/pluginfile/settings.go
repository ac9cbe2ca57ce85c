package pluginfile

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
)

// Settings and Differing return these words in place of the value of a plain variable, because the
// value may be a password.
const (
	someText  = "(a text)"
	otherText = "(another text)"
)

// Settings returns a definition as plugin-file keys with their values, for users. It omits default
// values. For a secret, it returns the reference to the secret. For a plain variable, it returns
// only that the variable is set.
func Settings(d *plugin.Definition) map[string]string {
	out := map[string]string{}
	set := func(key, value string) {
		if value != "" {
			out[key] = value
		}
	}

	if d.Disabled {
		out[keyEnabled] = "false"
	}
	set("type", d.Type)
	set("instance", d.Instance)
	switch runner := d.Runner(); {
	case d.Exec != nil:
		out["exec.command"] = list(d.Exec.Command)
	case d.Container != nil:
		c := d.Container
		set("container.runtime", c.Runtime)
		set("container.image", c.Image)
		set("container.entrypoint", c.Entrypoint)
		set("container.args", list(c.Args))
		set("container.mounts", list(c.Mounts))
		if c.Pull != plugin.PullNever {
			set("container.pull", c.Pull)
		}

	default:
		out[runner] = d.Unit + d.Socket + d.Builtin
	}

	for name, v := range d.Env() {
		out[d.Runner()+".env."+name] = envWords(v)
	}

	usual := defaults()
	for key, pair := range map[string][2]time.Duration{
		"health.interval": {d.ProbeInterval, usual.ProbeInterval}, "health.timeout": {d.ProbeTimeout, usual.ProbeTimeout},
		"health.start_timeout": {d.StartTimeout, usual.StartTimeout},
		"timeouts.node":        {d.NodeTimeout, usual.NodeTimeout}, "timeouts.controller": {d.ControllerTimeout, usual.ControllerTimeout},
	} {
		if pair[0] != pair[1] {
			out[key] = pair[0].String()
		}
	}

	set("scope", d.Scope)
	set("fence", string(d.Fence))
	if d.StatsInterval != nil {
		out["stats_interval"] = d.StatsInterval.String()
	}

	if d.MaxInFlight != usual.MaxInFlight {
		out["max_in_flight"] = strconv.Itoa(d.MaxInFlight)
	}

	set("unmasked_secrets", list(d.UnmaskedSecrets))
	if d.OnChange != usual.OnChange {
		out["on_change"] = d.OnChange
	}

	return out
}

func list(words []string) string {
	if len(words) == 0 {
		return ""
	}

	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = strconv.Quote(w)
	}

	return "[" + strings.Join(quoted, ", ") + "]"
}

func envWords(v plugin.EnvValue) string {
	switch s := v.Secret; {
	case s == nil:
		return someText
	case s.File != "":
		return fmt.Sprintf("{file: %s}", s.File)
	case s.Credential != "":
		return fmt.Sprintf("{credential: %s}", s.Credential)
	default:
		return fmt.Sprintf("{env: %s}", s.Env)
	}
}

// Differing returns those Settings of b that differ from the Settings of a. The value "-" means
// that a has the setting and b does not.
func Differing(a, b *plugin.Definition) map[string]string {
	was, now := Settings(a), Settings(b)
	for name, v := range b.Env() {
		if old, ok := a.Env()[name]; ok && v.Secret == nil && old.Secret == nil && v.Value != old.Value {
			now[b.Runner()+".env."+name] = otherText
		}
	}

	out := maps.Clone(now)
	maps.DeleteFunc(out, func(key, value string) bool { return was[key] == value })
	for key := range was {
		if _, still := now[key]; !still {
			out[key] = "-"
		}
	}

	return out
}
