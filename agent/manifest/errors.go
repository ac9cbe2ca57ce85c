package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Kind says why a manifest cannot be imported.
type Kind int

// These are the kinds of errors.
const (
	// Invalid is a manifest or an answer with a mistake.
	Invalid Kind = iota
	// Template is a manifest that must be rendered first.
	Template
	// Choice is a manifest in which the driver's container is not clear. A person must name it.
	Choice
	// Kubernetes is a driver that needs the API of Kubernetes.
	Kubernetes
	// SecretArgument is a driver that takes a secret in an argument. Plugin files cannot express this.
	SecretArgument
)

// Error is the reason why a manifest cannot be imported. No error contains the value of a secret.
type Error struct {
	Kind    Kind
	Message string
}

// Error returns the reason.
func (e *Error) Error() string { return e.Message }

// invalid returns an error of the kind Invalid.
func invalid(format string, args ...any) error {
	return &Error{Kind: Invalid, Message: fmt.Sprintf(format, args...)}
}

// quoted returns names in quotes, separated by commas.
func quoted(names []string) string {
	if len(names) == 0 {
		return "none"
	}

	out := make([]string, len(names))
	for i, name := range names {
		out[i] = strconv.Quote(clean(name))
	}

	return strings.Join(out, ", ")
}

// listed returns names separated by commas.
func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return clean(strings.Join(names, ", "))
}

// sortedKeys returns the sorted keys of a map.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
