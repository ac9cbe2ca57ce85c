// Package reason shortens the errors that occur while etcd does not answer, for people.
package reason

import "strings"

// notPermitted is the reason if systemd has read the unit of the agent before the host was in a cluster.
const notPermitted = "the unit of the agent does not permit the network; run: systemctl daemon-reload && systemctl restart volagent"

// reasons are short texts for errors of gRPC. The first one
// whose part occurs in an error counts.
var reasons = []struct{ part, text string }{
	// systemd's RestrictAddressFamilies= and IPAddressDeny= have these errors.
	{"address family not supported", notPermitted},
	{"connect: operation not permitted", notPermitted},
	{"certificate has expired or is not yet valid", "a certificate has expired or is not valid yet; are the clocks right?"},
	{"unknown authority", "its certificate is from another authority: is it another cluster?"},
	{"bad certificate", "it refuses the certificate of this host"},
	{"expired certificate", "the certificate of this host has expired"},
	{"first record does not look like a TLS handshake", "it does not use TLS; does the endpoint begin with http://?"},
	{"connection refused", "connection refused"},
	{"no route to host", "no route to host"},
	{"network is unreachable", "the network is unreachable"},
	{"no such host", "its name cannot be resolved"},
	{"connection reset", "the connection was reset"},
	{"broken pipe", "the connection was reset"},
	{"no leader", "its members have no leader"},
	{"request timed out", "its members have no leader"},
	{"deadline exceeded", "no answer in time"},
	{"i/o timeout", "no answer in time"},
}

// Of returns a short text for the text of an error of gRPC. An unknown text stays as it is.
func Of(text string) string {
	for _, known := range reasons {
		if strings.Contains(text, known.part) {
			return known.text
		}
	}
	return text
}
