package dockervol

import (
	"reflect"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

type opts = map[string]string

// TestOptions checks that options have the same meaning inside and outside of "o".
func TestOptions(t *testing.T) {
	_, s := newWorld(t)
	parse := optionParser{s.Size}.parse
	for name, c := range map[string]struct {
		in   opts
		want options
	}{
		"none":           {nil, options{}},
		"volume":         {opts{"volume": "x y"}, options{volume: "x y"}},
		"device":         {opts{"device": "x"}, options{volume: "x"}},
		"both agree":     {opts{"device": "x", "volume": "x"}, options{volume: "x"}},
		"switches":       {opts{"ro": "", "exclusive": "true"}, options{readOnly: true, excl: true}},
		"switched off":   {opts{"ro": "false", "exclusive": "0", "rw": ""}, options{writable: true}},
		"not writable":   {opts{"rw": "false"}, options{readOnly: true}},
		"owner":          {opts{"uid": "5", "gid": "6", "mode": "770"}, options{own: volume.Ownership{UID: "5", GID: "6", Mode: "0770"}}},
		"o of a compose": {opts{"o": "device=x,ro,uid=7,"}, options{volume: "x", readOnly: true, own: volume.Ownership{UID: "7"}}},
		"size of docker": {opts{"plugin": "p", "size": "20g"}, options{plugin: "p", size: 20 << 30, making: []string{"size"}}},
		"o of podman":    {opts{"o": "size=1GiB", "SIZE": "1GiB", "plugin": "p"}, options{plugin: "p", size: 1 << 30, making: []string{"size"}}},
		"made": {
			opts{"plugin": "p", "size": "2GiB", "fs_type": "xfs", "mount_flags": "noatime:nodev", "reclaim": "delete", "access_mode": "multi-node-multi-writer", "param.Type": "a,b=c"},
			options{
				plugin: "p", size: 2 << 30, fsType: "xfs", flags: []string{"noatime", "nodev"}, reclaim: "delete", access: call.MultiNodeMultiWriter,
				params: opts{"Type": "a,b=c"}, making: []string{"fs_type", "mount_flags", "param.Type", "reclaim", "size"},
			},
		},
		"parameters": {opts{"plugin": "p", "parameters": "A=1,b=2=3"}, options{plugin: "p", params: opts{"A": "1", "b": "2=3"}, making: []string{"param.A", "param.b"}}},
	} {
		if got, err := parse(c.in); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// TestBadOptions checks that the error for an invalid option names the option and the valid values.
func TestBadOptions(t *testing.T) {
	_, s := newWorld(t)
	parse := optionParser{s.Size}.parse
	for words, in := range map[string]opts{
		`unknown option "type" (hint: valid options: volume, device, plugin`:              {"type": "nfs"},
		`a parameter of the plugin is param.iops`:                                         {"plugin": "p", "iops": "5"},
		`param.x, size apply only to a new volume (hint: give the plugin that creates it`: {"size": "1GiB", "param.x": "y", "o": ""},
		`volume and plugin exclude each other`:                                            {"volume": "x", "plugin": "p"},
		`option "size" is given twice, as "1GiB" and as "2GiB"`:                           {"o": "size=1GiB", "size": "2GiB", "plugin": "p"},
		`volume and device are the same option`:                                           {"volume": "x", "device": "y"},
		`device "a/b" contains a slash`:                                                   {"device": "a/b"},
		`at least 1048576; write`:                                                         {"plugin": "p", "size": "10"},
		`there is no unit "q"`:                                                            {"plugin": "p", "size": "10q"},
		`unknown access mode "rwo"`:                                                       {"access_mode": "rwo"},
		`option "ro" must be true or false, not "maybe"`:                                  {"ro": "maybe"},
		`ro and rw contradict each other`:                                                 {"ro": "", "rw": ""},
		`"x" is no uid`:                                                                   {"uid": "x"},
		`"9" is no mode`:                                                                  {"mode": "9"},
		`option "o" contains "o=a=b", which is not name=value`:                            {"o": "o=a=b"},
		`option "parameters" contains "c", which is not name=value`:                       {"plugin": "p", "parameters": "a=b,c"},
		`plugin id "a b" is not`:                                                          {"plugin": "a b"},
	} {
		if _, err := parse(in); err == nil {
			t.Errorf("%v was taken", in)
		} else {
			says(t, err, words)
		}
	}
	if strings.Contains(strings.Join(known, " "), "timeout") {
		t.Error("podman keeps its timeout to itself")
	}
}
