package apiserver

import (
	"slices"
	"strings"
	"unicode"

	"github.com/volagent/volagent/volmgr/volume"
)

// searched is the number of a plugin's last log lines that logOf searches for lines about a volume.
const searched = 50

// logOf returns the last n lines that a plugin wrote. If volumes are given, it omits lines that
// name another volume of the plugin and none of the given ones.
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

// namesOf returns the names by which a plugin may call a volume.
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

// wordRune reports whether a character may be part of a volume's name. "/" and ":" end a name, as
// in paths and "volume: error".
func wordRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-'
}
