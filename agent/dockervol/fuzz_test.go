package dockervol

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// FuzzOptions checks that the service either refuses options or returns a consistent result. An
// option inside "o" must have the same meaning as outside of it.
func FuzzOptions(f *testing.F) {
	for _, name := range known {
		f.Add(name, "x", "plugin", "p")
		f.Add(name, "1", strings.ToUpper(name), "0")
		f.Add("o", name+"=x", "plugin", "p")
	}
	for _, o := range [][4]string{
		{"ro", "", "rw", ""}, {"ro", "false", "rw", "false"}, {"ro", "no", "rw", "yes"}, {"rw", "false", "exclusive", ""}, {"o", "size=1GiB,ro", "plugin", "p"}, {"size", "9223372036854775807B", "plugin", "p"}, {"PARAM.Type", "x", "plugin", "p"},
		{"param.Type", "x", "plugin", "p"}, {"parameters", "A=1,b=2=3,", "plugin", "p"}, {"parameters", "o=1", "plugin", "p"}, {"o", "o=x", "O", "y"}, {"mode", "00000770", "uid", "+5"}, {"mode", "-1", "gid", "4294967295"}, {"volume", "..", "device", ".."},
		{"mount_flags", ",:,", "plugin", "p"}, {"\x00", "\xff", "", ""}, {"param.", "x", "plugin", "p"},
	} {
		f.Add(o[0], o[1], o[2], o[3])
	}
	f.Fuzz(func(t *testing.T, name, value, second, other string) {
		_, s := newWorld(t)
		parse := optionParser{s.Size}.parse
		in := opts{name: value, second: other}
		o, err := parse(in)
		if err != nil {
			return
		}
		flat, err := flatten(in)
		if err != nil {
			t.Fatal(err)
		}
		v := o.named(plugin.RuntimeDocker, "data")
		switch {
		case o.plugin != "" && o.volume != "", o.plugin == "" && len(o.making) > 0, o.own.Check() != nil, o.size < 0:
			t.Errorf("%q is %+v", in, o)
		case o.readOnly && o.writable, o.readOnly && denies(flat, "ro"):
			t.Errorf("%q is read-only: %t, writable: %t", in, o.readOnly, o.writable)
		case v.Check() != nil && volume.CheckID("volume", v.VolumeID) == nil:
			t.Errorf("%q is stored as %+v: %v", in, v, v.Check())
		}
		for param := range o.params {
			if !strings.Contains(name+value+second+other, param) {
				t.Errorf("%q is the parameter %q", in, param)
			}
		}
		if name != second && !strings.ContainsAny(name+value+second+other, ",=") && !strings.EqualFold(name, "o") && !strings.EqualFold(second, "o") {
			if again, err := parse(opts{"o": name + "=" + value + "," + second + "=" + other}); name != "" && second != "" && (err != nil || !reflect.DeepEqual(again, o)) {
				t.Errorf("%q is %+v, and in o %+v, %v", in, o, again, err)
			}
		}
	})
}

// FuzzRequest checks the answers to random requests of a runtime. Each answer follows the protocol,
// and its error is one line. If the runtime could misread an answer, the server closes the
// connection without an answer. The stored data stays consistent.
func FuzzRequest(f *testing.F) {
	methods := []string{"Create", "Remove", "Mount", "Unmount", "Path", "Get", "List", "Capabilities", "Nothing"}
	for i := range methods {
		for _, body := range []string{
			"", "{}", "null", "[]", `{"Name":"data"}`, `{"Name":"data","ID":"c"}`, `{"name":"data","NAME":"x"}`, `{"Name":"\u0000\n\u202e"}`, `{"Name":"data","Opts":{"o":"ro,x"}}`, `{"Name":"data","Opts":{"volume":"../x"}}`, `{"Name":`, `{"Name":1}`, "\xff", `{"Name":"data"} {"Name":"x"}`,
		} {
			f.Add(byte(i), body, byte(2), `{"Name":"data","ID":"d"}`)
		}
	}
	f.Fuzz(func(t *testing.T, first byte, body string, second byte, other string) {
		_, s := newWorld(t, "data")
		_, call := serving(t, s)
		for _, c := range []struct{ method, body string }{{"Create", `{"Name":"data"}`}, {methods[int(first)%len(methods)], body}, {methods[int(second)%len(methods)], other}, {"List", ""}} {
			code, answer, err := call("VolumeDriver."+c.method, c.body)
			if err != nil && c.method != "Get" && c.method != "Path" {
				t.Errorf("%s %q: %v", c.method, c.body, err)
			}
			if err != nil {
				continue
			}
			text, failed := answer["Err"].(string)
			if (code == 200) == failed || code != 200 && code != 500 || failed && (text == "" || strings.ContainsFunc(text, unicode.IsControl)) {
				t.Errorf("%s %q: %d %v", c.method, c.body, code, answer)
			}
		}
		for _, v := range s.Store.RuntimeVolumes() {
			if raw, err := json.Marshal(v); err != nil || v.Check() != nil {
				t.Errorf("%s, %v, %v", raw, err, v.Check())
			}
		}
	})
}
