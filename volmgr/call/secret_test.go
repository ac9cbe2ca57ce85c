package call_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
)

func TestSecretNeverPrints(t *testing.T) {
	const value = "hunter2"
	secret := call.NewSecret(value)
	type nested struct {
		Public  call.Secret
		private call.Secret
		List    []call.Secret
		Ptr     *call.Secret
		Any     any
		Request call.NodeStageRequest
	}
	n := nested{secret, secret, []call.Secret{secret}, &secret, secret, call.NodeStageRequest{Secrets: call.Secrets{"k": secret}}}
	_ = n.private
	for _, v := range []any{secret, &secret, n, &n, call.Secrets{"k": secret}, []any{secret}, map[call.Secret]int{secret: 1}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%t", "%p", "%T", "%!"} {
			if got := fmt.Sprintf(verb, v); strings.Contains(got, value) || strings.Contains(strings.ToLower(got), fmt.Sprintf("%x", value)) {
				t.Errorf("%s of %T prints the value: %s", verb, v, got)
			}
		}
		for name, marshal := range map[string]func(any) ([]byte, error){"json": json.Marshal, "xml": xml.Marshal} {
			if got, _ := marshal(v); strings.Contains(string(got), value) { // an encoder that fails returns no output
				t.Errorf("%s of %T holds the value: %s", name, v, got)
			}
		}
		var log strings.Builder
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		if strings.Contains(log.String(), value) {
			t.Errorf("a log line of %T holds the value: %s", v, log.String())
		}
	}
	for verb, want := range map[string]string{"%v": "***", "%+v": "***", "%#v": "***", "%s": "***"} {
		if got := fmt.Sprintf(verb, secret); got != want {
			t.Errorf("%s gives %q, want %q", verb, got, want)
		}
	}
	if got, err := json.Marshal(call.Secrets{"k": secret}); err != nil || string(got) != `{"k":"***"}` {
		t.Errorf("JSON is %s, %v", got, err)
	}
	if got := secret.Reveal(); got != value {
		t.Errorf("Reveal gives %q, want %q", got, value)
	}
	if got := (call.Secret{}).Reveal(); got != "" {
		t.Errorf("Reveal of no secret gives %q", got)
	}
}
