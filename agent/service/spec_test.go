package service

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/volume"
)

// FuzzVolume checks that every decoded volume file converts into a volume, and that the volume
// converts back to the same file. It also checks that an answer never contains the value of a
// secret.
func FuzzVolume(f *testing.F) {
	for _, text := range []string{
		"", "{}", "null", "[]", `{"id":"a"} {"id":"b"}`, `{"id":"data","plugin_id":"p","secrets":{"k":"hunter2hunter2","f":{"file":"/k"}}}`, `{"id":"a","ID":"b"}`, `{"unknown":1}`, `{"id":1}`, "\xff",
		`{"id":"data","plugin_id":"p","capabilities":[{},{"access_mode":"single-node-writer"}],"mount_options":{"fs_type":"xfs","mount_flags":["ro"]},"topology_request":{"required":[{"a":"b"}]},"capacity_min":-1}`,
		`{"secrets":{"k":{"sealed":true,"literal":"x"}}}`, `{"secrets":{"k":null}}`, `{"secrets":null,"mount_options":null}`,
		`{"id":"data","scope":"shared","takeover":"never"}`, `{"id":"data","takeover":"proven"}`,
	} {
		f.Add(text, "hunter2hunter2")
	}
	f.Fuzz(func(t *testing.T, text, secret string) {
		var s api.VolumeSpec
		if json.Unmarshal([]byte(text), &s) != nil {
			return
		}
		const key = "the key of the secret"
		if s.Secrets == nil {
			s.Secrets = map[string]api.Secret{}
		}
		s.Secrets[key] = api.Secret{Literal: api.NewLiteral(secret)}
		v := Volume(s)
		if v.Secrets[key].Literal.Reveal() != secret || len(v.Capabilities) == 0 || v.Reclaim == "" {
			t.Errorf("%q is %+v", text, v)
		}
		shown := toSpec(v)
		for name, one := range shown.Secrets {
			if _, is := one.Literal.Reveal(); is {
				t.Errorf("the value of secret %q is shown", name)
			}
		}
		if (s.Takeover == api.TakeoverNever) != (v.Takeover == volume.TakeoverNever) {
			t.Errorf("takeover: %s is %q", s.Takeover, v.Takeover)
		}
		again := Volume(shown)
		if second := toSpec(again); !reflect.DeepEqual(second, shown) {
			t.Errorf("%q is shown as %+v, and that as %+v", text, shown, second)
		}
	})
}
