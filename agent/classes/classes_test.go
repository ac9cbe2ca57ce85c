package classes

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// plugins maps the ids of plugins to their drivers.
type plugins map[string]string

func (p plugins) IDs() (ids []string) {
	for id := range p {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (p plugins) View(id string) plugin.View {
	driver, known := p[id]
	return plugin.View{Known: known, State: "ready", Info: plugin.Info{Driver: driver}}
}

// read writes class files to a directory and reads them.
func read(t *testing.T, files map[string]string) (*Classes, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		write(t, filepath.Join(dir, name), text, 0o644)
	}
	c := New(Options{Dir: dir, Node: "web1", Plugins: plugins{"ebs": "ebs.example", "local": "local.example"}, Log: hclog.NewNullLogger()})
	c.Reload()
	return c, dir
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// refused checks the kind of an error, and that its message contains all the given words.
func refused(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	var e *volume.Error
	if !errors.As(err, &e) || !errors.Is(err, kind) {
		t.Errorf("got %v, want an error of the kind %v", err, kind)
		return
	}
	for _, want := range words {
		if all := e.Message + " (hint: " + e.Hint + ")"; !strings.Contains(all, want) {
			t.Errorf("got  %s\nwant %s", all, want)
		}
	}
}

// TestReload checks that a mistake in one file, or one class in two files, does not affect the other
// classes, and that each mistake is shown with its place.
func TestReload(t *testing.T) {
	c, dir := read(t, map[string]string{
		"a.yaml": "plugin_id: ebs\n", "bad.yaml": "plugin_id: ebs\nsice: 1GiB\n", "one.yaml": "id: twice\nplugin_id: ebs\n", "two.yaml": "id: twice\nplugin_id: local\n",
		"nosuch.yaml": "# no such plugin\nplugin_id: nosuch\n", ".hidden.yaml": "x", "a.yaml~": "x", "a.yml": "x", "syntax.yaml": "a: [",
		"sc.yaml": "kind: StorageClass\nmetadata: {name: gp3}\nprovisioner: ebs.example\n",
	})
	made := func(class string) (string, error) {
		got, err := c.Spec(api.VolumeSpec{ID: "data", Class: class})
		return got.PluginID, err
	}
	for class, want := range map[string]string{"a": "ebs", "gp3": "ebs"} {
		if got, err := made(class); err != nil || got != want {
			t.Errorf("%s: %q, %v", class, got, err)
		}
	}
	for class, want := range map[string]string{
		"bad":    `class "bad" cannot be used: ` + dir + `/bad.yaml:2: unknown field "sice" in a class (did you mean "size"?) (hint: fix it, then: systemctl reload volagent)`,
		"twice":  `class "twice" cannot be used: ` + dir + `/one.yaml: class "twice" is also in ` + dir + `/two.yaml; remove one of the files`,
		"syntax": `class "syntax" cannot be used: ` + dir + `/syntax.yaml:1: `,
	} {
		_, err := made(class)
		refused(t, err, volume.ErrRefused, want)
	}
	_, err := made("nosuch")
	refused(t, err, volume.ErrNotFound, `class "nosuch": `+dir+`/nosuch.yaml:2: no plugin "nosuch"; the plugins are ebs, local (hint: volctl plugin list)`)
	_, err = made("fats")
	refused(t, err, volume.ErrNotFound, `no class "fats"; the classes are a, bad, gp3, nosuch, syntax, twice (hint: volctl class list)`)

	var shown []string
	for _, one := range c.All() {
		shown = append(shown, one.Spec.ID+" "+one.PluginState)
	}
	if want := []string{"a ready", "bad ", "gp3 ready", "nosuch ", "syntax ", "twice ", "twice "}; !slices.Equal(shown, want) {
		t.Errorf("classes %q", shown)
	}
	var problems []string
	for _, p := range c.Problems() {
		problems = append(problems, filepath.Base(p.Subject))
	}
	if want := []string{"bad.yaml", "nosuch.yaml", "one.yaml", "syntax.yaml", "two.yaml"}; !slices.Equal(problems, want) {
		t.Errorf("problems of %q", problems)
	}

	write(t, filepath.Join(dir, "bad.yaml"), "plugin_id: local\n", 0o644)
	if _, err := made("bad"); err == nil {
		t.Error("the file took effect without a reload")
	}
	c.Reload()
	if got, err := made("bad"); err != nil || got != "local" {
		t.Errorf("after a reload: %q, %v", got, err)
	}
}

// TestTrust checks that the agent uses no file that another user than root can change.
func TestTrust(t *testing.T) {
	c, dir := read(t, map[string]string{"ok.yaml": "plugin_id: ebs\n"})
	write(t, dir+"/group.yaml", "plugin_id: ebs\n", 0o664)
	write(t, dir+"/other.yaml", "plugin_id: ebs\n", 0o646)
	want := map[string]string{"group": "its group or others can write to it (mode 0664)", "other": "its group or others can write to it (mode 0646)"}
	if os.Geteuid() == 0 {
		write(t, dir+"/owner.yaml", "plugin_id: ebs\n", 0o600)
		if err := os.Chown(dir+"/owner.yaml", 65534, 0); err != nil {
			t.Fatal(err)
		}
		want["owner"] = "it belongs to the user with the id 65534, not to root"
	}
	if err := os.Symlink("group.yaml", dir+"/link.yaml"); err != nil {
		t.Fatal(err)
	}
	want["link"] = want["group"]

	c.Reload()
	for class, words := range want {
		_, err := c.Spec(api.VolumeSpec{ID: "data", Class: class})
		refused(t, err, volume.ErrRefused, words)
	}
	if _, err := c.Spec(api.VolumeSpec{ID: "data", Class: "ok"}); err != nil {
		t.Error(err)
	}

	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	c.Reload()
	_, err := c.Spec(api.VolumeSpec{ID: "data", Class: "ok"})
	refused(t, err, volume.ErrRefused, "no class can be used", "mode 0777")
	if p := c.Problems(); len(p) != 1 || p[0].Subject != dir {
		t.Errorf("problems %+v", p)
	}

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	c.Reload()
	_, err = c.Spec(api.VolumeSpec{ID: "data", Class: "ok"})
	refused(t, err, volume.ErrNotFound, `no class "ok": `+dir+` contains no class`, "NAME.yaml")
}

// TestDrivers checks how a driver determines the plugin.
func TestDrivers(t *testing.T) {
	c, _ := read(t, map[string]string{"d.yaml": "driver: ebs.example\n"})
	ask := func() (string, error) {
		got, err := c.Spec(api.VolumeSpec{ID: "data", Class: "d"})
		return got.PluginID, err
	}
	if id, err := ask(); err != nil || id != "ebs" {
		t.Errorf("%q, %v", id, err)
	}
	c.o.Plugins = plugins{"a": "ebs.example", "b": "ebs.example"}
	_, err := ask()
	refused(t, err, volume.ErrRefused, `several plugins have the driver "ebs.example": "a", "b"`, "plugin_id")
	c.o.Plugins = plugins{"a": "x", "b": ""}
	_, err = ask()
	refused(t, err, volume.ErrPluginUnavailable, `no plugin has reported the driver "ebs.example" yet; "b" have not reported any`)
	if p := c.Problems(); len(p) > 0 {
		t.Errorf("a plugin that starts is a problem: %+v", p)
	}
	c.o.Plugins = plugins{"a": "x"}
	_, err = ask()
	refused(t, err, volume.ErrNotFound, `no plugin has the driver "ebs.example"; the plugins are "a" (x)`)
}

// fast is a class with every field.
func fast() class {
	return class{plugin: "ebs", node: "web1", file: "/c/fast.yaml", ClassSpec: api.ClassSpec{
		ID: "fast", PluginID: "ebs", NamePrefix: "${NODE_ID}-", Size: api.ClassSize{Default: 10 << 30, Min: 1 << 30, Max: 1 << 40},
		Capabilities: []api.Capability{
			{AccessMode: "single-node-writer", AttachmentMode: "file-system"}, {AccessMode: "single-node-writer", AttachmentMode: "block-device"},
		},
		MountOptions: &api.MountOptions{FSType: "xfs", MountFlags: []string{"noatime"}}, Topology: &api.TopologyRequest{Required: []map[string]string{{"zone": "a"}}},
		Parameters: map[string]string{"type": "gp3"}, Mutable: map[string]string{"iops": "4000"}, Secrets: map[string]api.Secret{"key": {File: "/k"}},
		Reclaim: "delete", Scope: "host",
	}}
}

// TestCombine checks that a request gets the fields of its class.
func TestCombine(t *testing.T) {
	whole := api.VolumeSpec{
		ID: "data", Class: "fast", PluginID: "ebs", Name: "web1-data", CapacityMin: 10 << 30, Capabilities: fast().Capabilities, MountOptions: fast().MountOptions, Topology: fast().Topology,
		Parameters: fast().Parameters, Mutable: fast().Mutable, Secrets: fast().Secrets, Reclaim: "delete", Scope: "host",
	}
	with := func(change func(*api.VolumeSpec)) api.VolumeSpec { s := whole; change(&s); return s }
	for name, tt := range map[string]struct{ request, want api.VolumeSpec }{
		"nothing":  {api.VolumeSpec{}, whole},
		"the same": {with(func(s *api.VolumeSpec) { s.Class = "" }), whole},
		"a size":   {api.VolumeSpec{CapacityMin: 20 << 30}, with(func(s *api.VolumeSpec) { s.CapacityMin = 20 << 30 })},
		"a mode":   {api.VolumeSpec{Capabilities: []api.Capability{{AttachmentMode: "file-system"}}}, with(func(s *api.VolumeSpec) { s.Capabilities = s.Capabilities[:1] })},
		"a block device": {api.VolumeSpec{Capabilities: []api.Capability{{AccessMode: "single-node-writer", AttachmentMode: "block-device"}}}, with(func(s *api.VolumeSpec) {
			s.Capabilities, s.MountOptions = s.Capabilities[1:], nil
		})},
		"more": {api.VolumeSpec{Parameters: map[string]string{"b": "c"}, Secrets: map[string]api.Secret{"s": {Env: "S"}}, SnapshotID: "snap"}, with(func(s *api.VolumeSpec) {
			s.Parameters, s.Secrets, s.SnapshotID = map[string]string{"type": "gp3", "b": "c"}, map[string]api.Secret{"key": {File: "/k"}, "s": {Env: "S"}}, "snap"
		})},
	} {
		tt.request.ID, tt.request.Class = "data", "fast"
		got, err := combine(fast(), tt.request)
		if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmp.AllowUnexported(api.Literal{})); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}

	// A class without limits and options leaves all of them to the request.
	bare := class{plugin: "p", ClassSpec: api.ClassSpec{ID: "bare"}}
	request := with(func(s *api.VolumeSpec) { s.PluginID, s.CapacityMin = "p", 0 })
	if got, err := combine(bare, request); err != nil || !cmp.Equal(got, request, cmp.AllowUnexported(api.Literal{})) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestFixed checks that a request replaces a field of its class only if the class allows it.
func TestFixed(t *testing.T) {
	for field, tt := range map[string]struct {
		request api.VolumeSpec
		want    string
	}{
		"name":               {api.VolumeSpec{Name: "x"}, `name: "web1-data" → "x"`},
		"capabilities":       {api.VolumeSpec{Capabilities: []api.Capability{{AccessMode: "multi-node-multi-writer"}}}, `→ "multi-node-multi-writer, file-system"`},
		"fs_type":            {api.VolumeSpec{MountOptions: &api.MountOptions{FSType: "ext4"}}, `fs_type: "xfs" → "ext4"`},
		"mount_flags":        {api.VolumeSpec{MountOptions: &api.MountOptions{MountFlags: []string{"ro"}}}, `mount_flags: ["noatime"] → ["ro"]`},
		"parameters":         {api.VolumeSpec{Parameters: map[string]string{"type": "io2"}}, `parameters.type: "gp3" → "io2"`},
		"mutable_parameters": {api.VolumeSpec{Mutable: map[string]string{"iops": "1"}}, `mutable_parameters.iops: "4000" → "1"`},
		"topology_request":   {api.VolumeSpec{Topology: &api.TopologyRequest{Required: []map[string]string{{"zone": "b"}}}}, `topology_request: `},
		"secrets":            {api.VolumeSpec{Secrets: map[string]api.Secret{"key": {Literal: api.NewLiteral("hunter2")}}}, `secrets.key: "of the class" → "of the request"`},
		"reclaim":            {api.VolumeSpec{Reclaim: "retain"}, `reclaim: "delete" → "retain"`},
		"scope":              {api.VolumeSpec{Scope: "shared"}, `scope: "host" → "shared"`},
		"plugin_id":          {api.VolumeSpec{PluginID: "local"}, `plugin_id: "ebs" → "local"`},
	} {
		c := fast()
		if field == "scope" {
			c.NamePrefix = "x-"
		}
		tt.request.ID = "data"
		_, err := combine(c, tt.request)
		refused(t, err, volume.ErrRefused, `class "fast" fixes values that the request changes: `, tt.want)
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error contains the secret", field)
		}
		if field == "plugin_id" {
			refused(t, err, volume.ErrRefused, "(hint: leave it out, or choose another class")
			continue
		}
		refused(t, err, volume.ErrRefused, "(hint: leave it out, or permit it in /c/fast.yaml: allow: ["+field+"])")
		c.Allow = []string{field}
		if _, err := combine(c, tt.request); err != nil {
			t.Errorf("%s, although the class allows it: %v", field, err)
		}
	}
}

// TestSizes checks the limits. The error for a size outside them contains both numbers.
func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		size        api.ClassSize
		least, most int64
		want        int64
		message     string
	}{
		{api.ClassSize{}, 0, 0, 0, ""},
		{api.ClassSize{Default: 10 << 30}, 0, 0, 10 << 30, ""},
		{api.ClassSize{Min: 2 << 30}, 0, 0, 2 << 30, ""},
		{api.ClassSize{Max: 8 << 30}, 0, 8 << 30, 0, ""},
		{api.ClassSize{Max: 8 << 30}, 8 << 30, 0, 8 << 30, ""},
		{api.ClassSize{Max: 8 << 30}, 0, 0, 0, `class "c" needs a size: at most 8GiB`},
		{api.ClassSize{Max: 8 << 30}, 8<<30 + 1, 0, 0, `8589934593B is more than class "c" permits: at most 8GiB`},
		{api.ClassSize{Max: 8 << 30}, 1 << 30, 9 << 30, 0, `capacity_max 9GiB is more than class "c" permits: at most 8GiB`},
		{api.ClassSize{Min: 2 << 30}, 1 << 30, 0, 0, `1GiB is less than class "c" permits: at least 2GiB`},
	} {
		got, err := combine(class{ClassSpec: api.ClassSpec{ID: "c", Size: tt.size}}, api.VolumeSpec{ID: "a", CapacityMin: tt.least, CapacityMax: tt.most})
		if tt.message != "" {
			refused(t, err, volume.ErrRefused, tt.message)
		} else if err != nil || got.CapacityMin != tt.want {
			t.Errorf("%+v: %d, %v", tt, got.CapacityMin, err)
		}
	}
	_, err := combine(fast(), api.VolumeSpec{ID: strings.Repeat("x", 124)})
	refused(t, err, volume.ErrRefused, "has 129 bytes; plugins accept 128")
	c := fast()
	c.Scope = ""
	_, err = combine(c, api.VolumeSpec{ID: "a", Scope: "shared"})
	refused(t, err, volume.ErrRefused, `class "fast" makes no shared volumes`)
}

// TestAgain checks that a repeated request has the values of the existing volume for all fields that
// it leaves out, and its own values for the others.
func TestAgain(t *testing.T) {
	had := api.VolumeSpec{
		ID: "data", PluginID: "ebs", Name: "old-data", ExternalID: "vol-1", CapacityMin: 10 << 30, Capabilities: fast().Capabilities, MountOptions: fast().MountOptions,
		Parameters: map[string]string{"type": "old"}, Mutable: map[string]string{"iops": "1"}, Context: map[string]string{"a": "b"}, Secrets: map[string]api.Secret{"key": {Sealed: true}}, Reclaim: "retain",
	}
	same := had
	same.Class, same.ExternalID, same.Context, same.Mutable = "fast", "", nil, nil
	other := same
	other.CapacityMin, other.Parameters, other.Reclaim = 20<<30, map[string]string{"type": "new"}, "delete"
	other.MountOptions = &api.MountOptions{FSType: "ext4", MountFlags: []string{"noatime"}}
	other.Capabilities = []api.Capability{{AccessMode: "multi-node-multi-writer"}}
	for name, tt := range map[string]struct{ request, want api.VolumeSpec }{
		"the same":  {api.VolumeSpec{Class: "fast", Capabilities: had.Capabilities[:1]}, same},
		"different": {api.VolumeSpec{Class: "fast", CapacityMin: 20 << 30, Parameters: other.Parameters, Reclaim: "delete", MountOptions: &api.MountOptions{FSType: "ext4"}, Capabilities: other.Capabilities}, other},
	} {
		got := (*Classes)(nil).Again(had, tt.request)
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(api.Literal{})); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}
