package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

func TestSecretJSON(t *testing.T) {
	for text, want := range map[string]api.Secret{
		`"hunter2"`:                   {Literal: api.NewLiteral("hunter2")},
		` {"literal":"hunter2"} `:     {Literal: api.NewLiteral("hunter2")},
		`{"file":"/f"}`:               {File: "/f"},
		`{"credential":"c"}`:          {Credential: "c"},
		`{"env":"E"}`:                 {Env: "E"},
		`{"sealed":true}`:             {Sealed: true},
		`{}`:                          {},
		`{"file":"/f","sealed":true}`: {File: "/f", Sealed: true}, // this JSON is valid; the code that uses the secret rejects the combination later
	} {
		var got api.Secret
		if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		raw, err := json.Marshal(want)
		var again api.Secret
		if err != nil || json.Unmarshal(raw, &again) != nil || !reflect.DeepEqual(again, want) {
			t.Errorf("%s there and back: %s, %v", text, raw, err)
		}
	}
	for _, text := range []string{`7707077`, `["hunter2"]`, `{"value":"hunter2"}`, `{"hunter2":1}`, `{"file":["hunter2"]}`, `{"literal":7707077}`, `true`, `null`} {
		var got struct{ S map[string]api.Secret }
		err := json.Unmarshal([]byte(`{"S":{"k":`+text+`}}`), &got)
		if !errors.Is(err, api.ErrSecret) && text != `null` || err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "7707077")) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestLiteralNeverPrints checks that a secret does not reveal its value when it is printed by
// mistake.
func TestLiteralNeverPrints(t *testing.T) {
	s := api.VolumeSpec{Secrets: map[string]api.Secret{"k": {Literal: api.NewLiteral("hunter2")}}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		if got := fmt.Sprintf(verb, s); strings.Contains(got, "hunter2") || strings.Contains(got, "68756e74") {
			t.Errorf("%s: %s", verb, got)
		}
	}
	if value, ok := (api.Literal{}).Reveal(); ok || value != "" {
		t.Errorf("no literal reveals %q", value)
	}
}
