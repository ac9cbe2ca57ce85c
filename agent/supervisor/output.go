package supervisor

import "github.com/volagent/volagent/agent/supervisor/pluginlog"

// A plugin's status shows the last shownLines lines of its log. An error message quotes the last
// errorLines lines.
const (
	shownLines = 5
	errorLines = 3
)

// log returns the plugin's log, or nil if this agent cannot read the log.
func (p *supervised) log() pluginlog.Log {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.traits.Log
}

// hide returns a function that removes secrets from the plugin's output.
func (p *supervised) hide() pluginlog.Scrub {
	def, _ := p.definition()
	return p.mask.hide(p.env, p.id, def)
}

// lastLog returns the last n lines of the log, or none if this agent cannot read the log. It logs
// an error instead of returning it.
func (p *supervised) lastLog(n int) []string {
	log := p.log()
	if log == nil {
		return nil
	}

	lines, err := log.Tail(n, p.hide())
	if err != nil {
		p.logger.Debug("cannot read the plugin's log", "error", err)
		return nil
	}
	return lines
}

// freshen makes the logs of the given parts contain all output so far.
func freshen(parts []*supervised) {
	for _, p := range parts {
		if log := p.log(); log != nil {
			log.Freshen(pluginlog.Patience)
		}
	}
}
