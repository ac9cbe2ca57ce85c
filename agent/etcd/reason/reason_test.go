package reason_test

import (
	"testing"

	"github.com/volagent/volagent/agent/etcd/reason"
)

// TestOf checks the short text for errors as gRPC words them.
func TestOf(t *testing.T) {
	for text, want := range map[string]string{
		`latest balancer error: connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:2379: connect: connection refused"`: "connection refused",
		"tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time":                                     "a certificate has expired or is not valid yet; are the clocks right?",
		"remote error: tls: expired certificate":                                   "the certificate of this host has expired",
		"dial tcp 10.0.0.1:2379: socket: address family not supported by protocol": "the unit of the agent does not permit the network; run: systemctl daemon-reload && systemctl restart volagent",
		"something else": "something else",
	} {
		if got := reason.Of(text); got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
