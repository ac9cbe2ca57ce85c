package apiserver

import (
	"slices"
	"strings"
	"unicode"

	"github.com/volagent/volagent/volmgr/volume"
)

// searched is the number of log lines in which logOf searches for lines about a volume.
const searched = 50

// logOf returns the last n lines of a plugin's log. If volumes are given, it omits lines that name
// only other volumes of the plugin.
func (s *Server) logOf(pluginID string, n int, volumes ...string) []string {
	if len(volumes) == 0 {
		return s.o.Plugins.Tail(pluginID, n)
	}

	var ours, others []string
	for _, r := range s.o.Records.Volumes() {
		switch v := r.Volume; {
		case slices.Contains(volumes, v.ID):
			ours = append(ours, namesOf(v)...)
		case v.PluginID == pluginID:
			others = append(others, namesOf(v)...)
		}
	}

	ours = append(ours, volumes...)
	lines := slices.DeleteFunc(s.o.Plugins.Tail(pluginID, searched), func(line string) bool {
		return namesAny(line, others) && !namesAny(line, ours)
	})
	return lines[max(0, len(lines)-n):]
}

// namesOf returns the names that a plugin may use for a volume in its log.
func namesOf(v volume.Volume) []string {
	return slices.DeleteFunc([]string{v.ID, v.Name, v.ExternalID}, func(s string) bool { return s == "" })
}

// namesAny reports whether a line contains one of the names as a separate word.
func namesAny(line string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		for rest := line; ; {
			i := strings.Index(rest, name)
			if i < 0 {
				return false
			}
			before, after := rest[:i], rest[i+len(name):]
			if !endsInWord(before) && !beginsWithWord(after) {
				return true
			}
			rest = after
		}
	})
}

func endsInWord(s string) bool {
	r := []rune(s)
	return len(r) > 0 && wordRune(r[len(r)-1])
}

func beginsWithWord(s string) bool {
	r := []rune(s)
	return len(r) > 0 && wordRune(r[0])
}

// wordRune reports whether a character may be part of a volume's name. "/" and ":" are not, because
// names occur in paths and in "volume: error".
func wordRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-'
}
