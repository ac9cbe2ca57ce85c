package supervisor

import "github.com/volagent/volagent/agent/supervisor/pluginlog"

// shownLines is how many of a plugin's last log lines its status shows. errorLines is how many the
// refusal of a client quotes.
const (
	shownLines = 5
	errorLines = 3
)

// log returns the plugin's log; nil if this agent cannot read it.
func (p *plugin) log() pluginlog.Log {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.traits.Log
}

// hide returns the function that removes secrets from the plugin's output.
func (p *plugin) hide() pluginlog.Scrub {
	def, _ := p.definition()
	return p.mask.hide(p.env, p.id, def)
}

// lastLog returns the last n lines of the log; none if this agent cannot read it. A failure to read
// the log is only logged.
func (p *plugin) lastLog(n int) []string {
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

// freshen brings the logs of parts up to date.
func freshen(parts []*plugin) {
	for _, p := range parts {
		if log := p.log(); log != nil {
			log.Freshen(pluginlog.Patience)
		}
	}
}
