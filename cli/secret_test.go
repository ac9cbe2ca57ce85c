package cli

import (
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// TestLiteralSecret checks that volctl sends the value of a secret to the agent and never prints
// it.
func TestLiteralSecret(t *testing.T) {
	f := world()
	f.on["PUT /v1/volumes/a"] = answers(api.VolumeResult{Outcome: "registered", Volume: api.Volume{Spec: api.VolumeSpec{
		ID: "a", Secrets: map[string]api.Secret{"x": {Sealed: true}},
	}}})
	r := with(t, f)
	r.stdin = "id: a\nplugin_id: ebs\nsecrets: {x: hunter2, y: {sealed: true}}\n"
	for _, args := range []string{"register -", "register - -o json", "register - -o yaml", "validate --offline - -o json", "validate --offline - -o yaml", "validate --offline -"} {
		if res := r.volctl(append([]string{"volume"}, strings.Fields(args)...)...); res.code != 0 || strings.Contains(res.stdout+res.stderr, "hunter2") {
			t.Errorf("%s: %+v", args, res)
		}
	}
	sent := f.sent()
	if len(sent) != 3 {
		t.Errorf("sent %q", sent)
	}
	for _, s := range sent {
		if !strings.Contains(s, `"secrets":{"x":{"literal":"hunter2"},"y":{"sealed":true}}`) {
			t.Errorf("sent %s", s)
		}
	}
}

// TestSecretFlag checks that the flag --secret accepts references to secrets, and refuses the value
// of a secret. The error must not contain the value.
func TestSecretFlag(t *testing.T) {
	f := world()
	f.on["POST /v1/volumes/a/create"] = answers(api.VolumeResult{Outcome: "created", Volume: api.Volume{Spec: api.VolumeSpec{ID: "a"}}})
	r := with(t, f)
	expect(t, r.volctl("volume", "create", "a", "-plugin", "local", "-secret", "k=file:/k", "-secret", "c=credential:c", "-secret", "e=env:E"), 0, "created volume \"a\"\n", "")
	expectSent(t, f, `POST /v1/volumes/a/create?wait=10m0s {"id":"a","plugin_id":"local","capabilities":[{"access_mode":"single-node-writer","attachment_mode":"file-system"}],`+
		`"secrets":{"c":{"credential":"c"},"e":{"env":"E"},"k":{"file":"/k"}}}`)
	for _, bad := range []string{"k=hunter2", "k=file:", "hunter2", "k=vault:hunter2"} {
		res := r.volctl("volume", "create", "a", "--plugin", "local", "--secret", bad)
		expect(t, res, 2, "", "--secret")
		if strings.Contains(res.stderr, "hunter2") {
			t.Errorf("%s: the error repeats it: %s", bad, res.stderr)
		}
	}
	expectSent(t, f)
}
