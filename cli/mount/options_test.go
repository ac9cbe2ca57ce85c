package mount

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

func TestMountOptions(t *testing.T) {
	id := func(n uint32) *uint32 { return &n }
	for _, tt := range []struct {
		options string
		want    api.ClaimRequest
	}{
		{"rw", api.ClaimRequest{}},
		{"", api.ClaimRequest{}},
		{"rw,", api.ClaimRequest{}},
		{"rw,ro", api.ClaimRequest{ReadOnly: true}},
		{"ro,rw", api.ClaimRequest{}},
		{"defaults,_netdev,nofail,auto,noauto,user,users,nouser,owner,group,x-systemd.automount,X-a=b,comment=c,helper=csi", api.ClaimRequest{}},
		{"access_mode=multi-node-reader-only,attachment_mode=block-device", api.ClaimRequest{AccessMode: "multi-node-reader-only", AttachmentMode: "block-device"}},
		{`mount_flag=discard,mount_flag="context=a,b"`, api.ClaimRequest{MountFlags: []string{"discard", "context=a,b"}}},
		{"noimmutable,nonempty", api.ClaimRequest{AtWritable: true}},
		{"nosymfollow,nodiratime,noatime,noexec,nodev,nosuid", api.ClaimRequest{AtFlags: []string{"nosuid", "nodev", "noexec", "noatime", "nodiratime", "nosymfollow"}}},
		{"nosuid,suid,noexec,exec,dev,noatime,atime,diratime,symfollow", api.ClaimRequest{}},
		{"noatime,relatime", api.ClaimRequest{AtFlags: []string{"relatime"}}},
		{"strictatime", api.ClaimRequest{AtFlags: []string{"strictatime"}}},
		{"uid=0,gid=7,mode=0750,recursive", api.ClaimRequest{Ownership: api.Ownership{UID: id(0), GID: id(7), Mode: "0750", Recursive: true}}},
	} {
		o, err := ReadOptions(strings.Split(tt.options, ";"))
		if err != nil {
			t.Errorf("%q: %v", tt.options, err)
			continue
		}
		got, _ := json.Marshal(o.req)
		want, _ := json.Marshal(tt.want)
		if string(got) != string(want) {
			t.Errorf("%q:\n got %s\nwant %s", tt.options, got, want)
		}
	}
	for options, want := range map[string]string{
		"alocc=x":              `unknown mount option "alocc"; did you mean alloc=?`,
		"access-mode=x":        `unknown mount option "access-mode"; did you mean access_mode=?`,
		"netdev":               `unknown mount option "netdev"; did you mean _netdev?`,
		"no_netdev":            `did you mean _netdev?`,
		"noatim":               `did you mean noatime?`,
		"discard":              `unknown mount option "discard"; pass an option of the file system to the plugin as mount_flag=discard; all options: volctl mount --help`,
		"rw,remount,ro":        "a volume that is mounted cannot be remounted; umount it and mount it again, with other options",
		"alloc":                `the option "alloc" needs a value; alloc=VALUE`,
		"alloc=":               `the option "alloc" needs a value`,
		"alloc=a/b":            "an alloc has 1 to 128 printable characters, without a slash",
		"ro=1":                 `the option "ro" takes no value; ro`,
		"nosuid=1":             `the option "nosuid" takes no value`,
		"nofail=yes":           `the option "nofail" takes no value`,
		"access_mode=writer":   `unknown access mode "writer": it is one of single-node-reader-only, `,
		"attachment_mode=file": `unknown attachment mode "file": it is one of file-system, block-device; did you mean file-system?`,
		"per_alloc=-1":         `per_alloc needs the number of an alloc, not "-1"; per_alloc=0`,
		"timeout=80x":          `timeout: "80x" is not a duration; write 5 or 5s for seconds`,
		"timeout=0s":           "timeout needs a time that is more than 0",
		"uid=nobody-here":      `uid "nobody-here" is neither a number below 4294967295 nor a name that this host knows; uid=1000`,
		"mode=9":               `mode needs an octal number from 0 to 7777, not "9"; mode=0770`,
		"size=1GiB":            `the option "size" is for a new volume; name the class too: class=NAME`,
		"class=x,size=1":       `bad size "1": a number without a unit counts bytes, and must be at least 1048576`,
		"class=a/b":            `bad class id "a/b"`,
		"recursive":            "recursive needs uid, gid or mode; recursive and gid=GROUP",
	} {
		_, err := ReadOptions([]string{options})
		if command.CodeOf(err) != api.CodeInvalid {
			t.Errorf("%q: %v", options, err)
			continue
		}
		if got := output.Joined("; ", command.Wire(err).Message, command.Wire(err).Hint); !strings.Contains(got, want) {
			t.Errorf("%q: %s", options, got)
		}
	}
}
