package output

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/agent/api"
)

// PluginState returns the state of a plugin. If a changed definition has not taken effect yet, the
// text says so.
func PluginState(p *api.Plugin) string {
	if p.Pending != "" {
		return p.State + ", change pending"
	}
	return p.State
}

// Staged returns the number of volumes of the plugin that are staged on this host. If the plugin
// has a limit, the text also contains the limit.
func Staged(p *api.Plugin) string {
	if p.MaxVolumes > 0 {
		return strconv.Itoa(p.Staged) + "/" + strconv.FormatInt(p.MaxVolumes, 10)
	}
	return strconv.Itoa(p.Staged)
}

// Topology formats the segments of a topology as KEY=VALUE pairs, sorted by key.
func Topology(segments map[string]string) string {
	parts := make([]string, 0, len(segments))
	for _, k := range slices.Sorted(maps.Keys(segments)) {
		parts = append(parts, k+"="+segments[k])
	}
	return strings.Join(parts, " ")
}

// Places formats the topologies from which a volume can be reached.
func Places(all []map[string]string) string {
	var words []string
	for _, t := range all {
		words = append(words, Topology(t))
	}
	return Joined(" or ", words...)
}

// Finding formats a problem that a plugin reports, in one line.
func Finding(f api.Finding) string {
	return OneLine(Joined(": ", Joined(", ", f.Severity, f.Reason), f.Message))
}

// codeWords maps gRPC codes to words for people.
var codeWords = map[string]string{
	"Canceled":           "cancelled",
	"Unknown":            "failed",
	"InvalidArgument":    "invalid request",
	"DeadlineExceeded":   "no answer in time",
	"NotFound":           "not found",
	"AlreadyExists":      "exists already",
	"PermissionDenied":   "permission denied",
	"ResourceExhausted":  "no capacity left",
	"FailedPrecondition": "not possible now",
	"Aborted":            "in progress already",
	"OutOfRange":         "out of range",
	"Unimplemented":      "not supported",
	"Internal":           "failed in the plugin",
	"Unavailable":        "plugin unavailable",
	"DataLoss":           "data lost",
	"Unauthenticated":    "not authenticated",
}

// CodeWords returns the words for a gRPC code. It returns any other code unchanged.
func CodeWords(code string) string {
	if words, ok := codeWords[code]; ok {
		return words
	}
	return code
}

// failedCall matches the failed call and its code in a message such as "NodeStageVolume: Internal:
// full".
var failedCall = regexp.MustCompile(`\b((?:Controller|Node|Create|Delete|Get|List|Modify|Validate|Probe)[A-Za-z]*): ([A-Z][A-Za-z]+)(: |; |, |$)`)

// Words replaces the gRPC codes of failed calls in a text with words.
func Words(text string) string {
	return failedCall.ReplaceAllStringFunc(text, func(found string) string {
		part := failedCall.FindStringSubmatch(found)
		return part[1] + ": " + CodeWords(part[2]) + part[3]
	})
}

// numbered matches a device with its number, in a text such as "device 7:0 is still in use".
var numbered = regexp.MustCompile(`\b(?:block |loop )?device (\d+:\d+)\b`)

// deviceNumber matches a text that consists of a device number.
var deviceNumber = regexp.MustCompile(`^\d+:\d+$`)

// Devices replaces the device numbers in a text with paths. The function path returns the path for
// a number, or "" if the device is unknown.
func Devices(text string, path func(number string) string) string {
	return numbered.ReplaceAllStringFunc(text, func(found string) string {
		if name := path(numbered.FindStringSubmatch(found)[1]); name != "" {
			return name
		}
		return found
	})
}
