package service

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/volagent/volagent/volmgr/volume"
)

// searched is the number of log lines in which view.logOf searches for lines about a volume.
const searched = 50

// linesAbout returns the lines of a plugin's log that may concern the given volumes. It omits lines
// that name only other volumes of the plugin.
func linesAbout(lines []string, records []volume.Record, pluginID string, volumes []string) []string {
	ours := slices.Clone(volumes)
	var others []string
	for _, r := range records {
		switch v := r.Volume; {
		case slices.Contains(volumes, v.ID):
			ours = append(ours, namesOf(v)...)
		case v.PluginID == pluginID:
			others = append(others, namesOf(v)...)
		}
	}

	return slices.DeleteFunc(lines, func(line string) bool { return namesAny(line, others) && !namesAny(line, ours) })
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
			last, _ := utf8.DecodeLastRuneInString(rest[:i])
			rest = rest[i+len(name):]
			first, _ := utf8.DecodeRuneInString(rest)
			if !wordRune(last) && !wordRune(first) {
				return true
			}
		}
	})
}

// wordRune reports whether a character may be part of a volume's name. The characters "/" and ":"
// are excluded, because a log shows names in paths and in messages such as "volume: error".
func wordRune(r rune) bool {
	return unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-'
}
