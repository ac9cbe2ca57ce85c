package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/volume"
)

func getHealth(s *Server, w http.ResponseWriter, _ *http.Request) error {
	n := s.o.Node()
	h := api.Health{Status: "ok", Version: api.Version, DB: n.DB}
	for _, p := range n.Problems {
		if p.Subject == "agent" {
			h.Problems = append(h.Problems, p.Message)
		}
	}

	return s.answer(w, h)
}

func getNode(s *Server, w http.ResponseWriter, r *http.Request) error {
	n := s.o.Node()
	n.Plugins = s.visiblePlugins(r.Context())
	if n.Draining {
		n.Drain = toDrain(s.o.Drainer.Look(r.Context()))
	}
	if n.State != "ok" {
		n.Problems = append(n.Problems, api.Problem{Subject: "agent", Message: n.State})
	}
	down := map[string]bool{}
	for _, p := range n.Plugins {
		down[p.ID] = s.ailing(p) && p.State != api.PluginReady // if the plugin is ready, another part serves its calls
	}

	for _, v := range s.describeAll(r.Context()) {
		n.Volumes++
		n.Claims += len(v.Claims)
		ill := v.Report != nil && len(v.Report.Health) > 0
		if ill {
			n.Problems = append(n.Problems, healthProblem(v))
		}
		switch v.State {
		case api.StateFree:
			n.Free++
		case api.StateMounted:
			n.Mounted++
		case api.StateStuck, api.StateDegraded:
			n.Problems = append(n.Problems, volumeProblem(v))
			continue
		}

		// A mounted volume works without its plugin and without the agent. Mounting a volume needs
		// both.
		mountable := !down[v.Spec.PluginID] && n.State == "ok"
		works := v.State == api.StateMounted || mountable
		if works && !ill {
			n.Unaffected++
		}
	}

	for _, p := range n.Plugins {
		if s.ailing(p) {
			n.Problems = append(n.Problems, pluginProblem(p))
		}
	}

	if n.Problems == nil {
		n.Problems = []api.Problem{}
	}
	return s.answer(w, n)
}

// ailing reports whether a plugin has a problem that a person must solve. A plugin that was stopped
// on purpose is a problem only if volumes need it. A plugin in its first start is no problem. A
// restarted plugin is one, because a plugin that never becomes ready is in the state "starting"
// most of the time.
func (s *Server) ailing(p api.Plugin) bool {
	switch p.State {
	case api.PluginReady:
		return ailingPart(p) != nil
	case api.PluginStarting:
		return p.Restarts > 0
	case api.PluginStopped:
		return p.Staged > 0 && s.o.Plugins.View(p.ID).Stopped
	default:
		return true
	}
}

// ailingPart returns a part with a problem that a person must solve, or nil. The plugin may be
// ready nevertheless, because another part serves its calls.
func ailingPart(p api.Plugin) *api.PluginPart {
	for i, part := range p.Parts {
		switch part.State {
		case api.PluginReady, api.PluginStopped:
		case api.PluginStarting:
			if part.Restarts > 0 {
				return &p.Parts[i]
			}
		default:
			return &p.Parts[i]
		}
	}

	return nil
}

// volumeProblem describes the problem of a volume in one line.
func volumeProblem(v api.Volume) api.Problem {
	p := api.Problem{Subject: v.Spec.ID, State: v.State, Message: strings.TrimPrefix(v.Summary, v.State+": "), Command: suggest.Command("volctl volume status %s", v.Spec.ID)}
	at := v.Attempt
	if at == nil {
		return p
	}

	p.Since = at.First
	switch {
	case len(at.HeldBy) > 0:
		p.Message += ", busy: " + at.HeldBy[0]
	case at.Code != "":
		p.Message += ", " + at.Step + ": " + at.Code
	}

	return p
}

// healthProblem describes a problem from the plugin's last report about a volume. The volume's
// state does not show such a problem, because it does not affect the claims.
func healthProblem(v api.Volume) api.Problem {
	f := v.Report.Health[0]
	words := "its plugin's " + f.By + " reports it"
	for _, part := range []string{f.Reason, f.Message} {
		if part != "" {
			words += ": " + part
		}
	}

	if more := len(v.Report.Health) - 1; more > 0 {
		words += fmt.Sprintf(", and %d more", more)
	}
	return api.Problem{
		Subject: v.Spec.ID, State: f.Severity, Since: v.Report.CheckedAt[f.By], Message: words,
		Command: suggest.Command("volctl volume status %s", v.Spec.ID),
	}
}

// pluginProblem describes the problem of a plugin in one line.
func pluginProblem(p api.Plugin) api.Problem {
	out := api.Problem{Subject: p.ID, State: strings.ReplaceAll(p.State, "-", " "), Since: p.Since, Message: p.Reason, Command: suggest.Command("volctl plugin logs %s", p.ID)}
	if part := ailingPart(p); part != nil && p.State == api.PluginReady {
		out.State, out.Since = strings.ReplaceAll(part.State, "-", " ")+" in part", part.Since
	}
	switch {
	case p.State == api.PluginStopped:
		out.Message, out.Command = "on request, and volumes need it", suggest.Command("volctl plugin start %s", p.ID)
	case p.LogFile == "" && len(p.Parts) < 2 || p.State == api.PluginFailed:
		out.Command = suggest.Command("volctl plugin status %s", p.ID)
	}

	switch {
	case p.Restarts == 1:
		out.Message += ", 1 restart"
	case p.Restarts > 1:
		out.Message += fmt.Sprintf(", %d restarts", p.Restarts)
	}

	if next := time.Until(p.Next).Round(time.Second); next > 0 {
		out.Message += fmt.Sprintf(", next in %s", next)
	}
	return out
}

func listPlugins(s *Server, w http.ResponseWriter, r *http.Request) error {
	return s.answer(w, s.visiblePlugins(r.Context()))
}

func getPlugin(s *Server, w http.ResponseWriter, r *http.Request) error {
	q, err := waitFor(r, "ready")
	if err != nil {
		return err
	}

	id := r.PathValue("id")
	ctx, cancel := context.WithTimeout(r.Context(), q.wait)
	defer cancel()

	for {
		if _, ok := s.o.Plugins.Get(id); !ok {
			return noPlugin(id)
		}

		changed := s.o.Plugins.Changed(id)
		p, ok := s.o.Plugins.Get(id)
		switch {
		case !ok:
			return noPlugin(id)
		case q.state == "" || p.State == q.state:
			return s.answer(w, s.visible(r.Context(), p))
		}

		select {
		case <-changed:
		case <-ctx.Done():
			v := s.o.Plugins.View(id)
			hint := v.LogRemedy(id)
			if v.Stopped {
				hint = v.Remedy(id)
			}
			return volume.Errorf(volume.ErrTimeout, "plugin %q is %s, not %s: %s", id, p.State, q.state, p.Reason).WithRemedy(hint)
		}
	}
}

// maxLines limits the number of log lines in one answer.
const maxLines = 10000

func pluginLogs(s *Server, w http.ResponseWriter, r *http.Request) error {
	id := r.PathValue("id")
	if _, ok := s.o.Plugins.Get(id); !ok {
		return noPlugin(id)
	}

	lines, err := number(r, "lines", 100)
	if err != nil {
		return err
	}

	follow, err := flag(r, "follow")
	if err != nil {
		return err
	}

	which, err := which(r)
	if err != nil {
		return err
	}

	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	return s.o.Plugins.Log(r.Context(), id, which, min(lines, maxLines), follow, func(b []byte) error {
		_, err := w.Write(b)
		flush(w)
		return err
	})
}

// number reads an integer from the query. If the query does not contain it, number returns the
// value of the argument without.
func number(r *http.Request, name string, without int) (int, error) {
	raw := r.URL.Query().Get(name)
	if raw == "" {
		return without, nil
	}

	n, err := strconv.Atoi(raw)
	if err != nil || n < 0 {
		return 0, volume.Errorf(volume.ErrInvalid, "%s=%q is not a whole number", name, raw)
	}
	return n, nil
}

// flush sends the data that was written so far. It does nothing if the writer cannot flush.
func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}
