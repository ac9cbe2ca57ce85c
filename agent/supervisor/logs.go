package supervisor

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/volagent/volagent/agent/supervisor/part"
	"github.com/volagent/volagent/agent/supervisor/pluginlog"
	"github.com/volagent/volagent/volmgr/remedy"
	"github.com/volagent/volagent/volmgr/volume"
)

// logs serves the logs of plugins to users.
type logs struct{ *parts }

// LogPath returns the log file of a plugin that has only one part. The error wraps
// volume.ErrNotFound if there is no such plugin, and volume.ErrRefused if the agent does not keep
// the plugin's log.
func (s *logs) LogPath(id string) (string, error) {
	sources, err := s.logged(id, nil)
	if err != nil {
		return "", err
	}

	path := sources[0].log.Path()
	if path == "" {
		return "", volume.Errorf(volume.ErrRefused, "the log of plugin %q is in systemd's journal", id).WithRemedy(remedy.Of(remedy.ShowPluginLog, id))
	}

	return path, nil
}

// source is a part whose log this agent can read.
type source struct {
	*supervised
	log pluginlog.Log
}

// logged returns those of the selected parts whose log this agent can read.
func (s *logs) logged(id string, only []part.Only) ([]source, error) {
	parts, err := s.selected(id, only)
	if err != nil {
		return nil, err
	}

	var logged []source
	started := false
	for _, p := range parts {
		if log := p.log(); log != nil {
			logged = append(logged, source{p, log})
		}

		def, _ := p.definition()
		started = started || def != nil
	}

	switch {
	case len(logged) > 0:
		return logged, nil
	case !started:
		return nil, volume.Errorf(volume.ErrRefused, "plugin %q was never started, so it has no log", id).WithRemedy(remedy.Of(remedy.ShowPlugin, id))
	default:
		return nil, volume.Errorf(volume.ErrRefused, "the agent has no log of plugin %q: another program runs it and keeps its log", id).WithRemedy(remedy.Of(remedy.ShowPlugin, id))
	}
}

// LogTail returns the last n lines of a plugin's log. If the plugin has several parts, it returns n
// lines of each part. LogTail removes the plugin's secrets from the lines.
func (s *logs) LogTail(id string, n int, only ...part.Only) ([]string, error) {
	sources, err := s.logged(id, only)
	if err != nil {
		return nil, err
	}

	return tails(sources, n)
}

// FollowLog passes the last n lines of a plugin's log to the function write. If follow is true, it
// then passes every new line until ctx ends or write fails. If the plugin has several parts, each
// line begins with the name of its part. FollowLog removes the plugin's secrets from the lines. It
// returns the same errors as LogPath.
func (s *logs) FollowLog(ctx context.Context, id string, n int, follow bool, write func([]byte) error, only ...part.Only) error {
	sources, err := s.logged(id, only)
	if err != nil {
		return err
	}
	if !follow {
		lines, err := tails(sources, n)
		return errors.Join(err, write(joined(lines)))
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel() // runs before Wait, so that the readers end

	fresh, failed := make(chan []string), make(chan error, len(sources))
	for _, p := range sources {
		p.log.Freshen(pluginlog.Patience)
		lines, rest, err := p.log.Follow(n, p.hide())
		if err = errors.Join(err, write(joined(label(p, lines)))); err != nil {
			return err
		}

		readers.Go(func() {
			failed <- rest(ctx, func(lines []string) error {
				select {
				case fresh <- label(p, lines):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	}

	for {
		select {
		case lines := <-fresh:
			if err := write(joined(lines)); err != nil {
				return err
			}

		case err := <-failed:
			if ctx.Err() != nil {
				return nil // the reader of the log has gone away, which is not an error
			}
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// label puts the name of the part before each line, if the plugin has several parts.
func label(p source, lines []string) []string {
	if len(p.siblings.of(p.id)) < 2 {
		return lines
	}

	g := p.look()
	name := g.Name()
	for i, line := range lines {
		lines[i] = name + " | " + line
	}

	return lines
}

func joined(lines []string) []byte {
	if len(lines) == 0 {
		return nil
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

// tails returns the last n lines of the log of each part.
func tails(sources []source, n int) ([]string, error) {
	for _, p := range sources {
		p.log.Freshen(pluginlog.Patience)
	}

	var all []string
	for _, p := range sources {
		lines, err := p.log.Tail(n, p.hide())
		if err != nil {
			return nil, err
		}
		all = append(all, label(p, lines)...)
	}

	return all, nil
}
