package container

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestUsing checks that only a container that has ended counts as not using its volume. A container
// in any other state may be about to start. If the runtime's answer cannot be read, Using must
// return an error.
func TestUsing(t *testing.T) {
	r := program(t, "docker", `case "$*" in
"ps --all --quiet --no-trunc --filter volume=data") echo a; echo b; echo c;;
"ps --all --quiet --no-trunc --filter volume=none") ;;
"ps --all --quiet --no-trunc --filter volume=gone") echo x;;
"ps --all --quiet --no-trunc --filter volume=odd") echo y;;
"container inspect a b c") echo '[{"Name":"/web","State":{"Status":"restarting"}},{"Name":"/old","State":{"Status":"exited"}},{"Name":"/new","State":{"Status":"created"}}]';;
"container inspect y") echo '[]';;
"ps --all --quiet --no-trunc --filter volume="*) ;;
"volume inspect none") echo '[{"Name":"none","Driver":"csi"}]';;
"volume inspect local") echo '[{"Name":"local","Driver":"local"}]';;
"volume inspect two") echo '[{},{}]';;
"volume inspect"*) echo "Error response from daemon: get $3: no such volume" >&2; exit 1;;
*) echo "Error: no such container x" >&2; exit 1;;
esac`)
	if got, err := r.Using(t.Context(), "data"); err != nil || !slices.Equal(got, []string{"web", "new"}) {
		t.Errorf("it is used by %q, %v", got, err)
	}
	if got, err := r.Using(t.Context(), "none"); err != nil || len(got) > 0 {
		t.Errorf("it is used by %q, %v", got, err)
	}
	for _, name := range []string{"gone", "odd", "elsewhere", "local", "two"} {
		if got, err := r.Using(t.Context(), name); err == nil {
			t.Errorf("%s is used by %q", name, got)
		}
	}
	p := program(t, "podman", `case "$*" in
"ps --all --quiet --no-trunc --filter volume=up --sync") echo a; echo b;;
"ps --all --quiet --no-trunc --filter volume="*" --sync") echo b;;
"container inspect a b") echo '[{"Name":"web","State":{"Status":"running"}},{"Name":"new","State":{"Status":"created"}}]';;
"container inspect b") echo '[{"Name":"new","State":{"Status":"created"}}]';;
"volume inspect free") echo '[{"Driver":"csi","MountCount":0}]';;
"volume inspect held") echo '[{"Driver":"csi","MountCount":2}]';;
"volume inspect reset") echo "Error: no such volume reset" >&2; exit 125;;
*) echo "Error: $*" >&2; exit 125;;
esac`)
	for name, want := range map[string]int{"free": 0, "reset": 0, "held": 1, "up": 1} {
		if got, err := p.Using(t.Context(), name); err != nil || len(got) != want {
			t.Errorf("%s is used by %q, %v", name, got, err)
		}
	}
	if got, err := p.Using(t.Context(), "noplugin"); err == nil {
		t.Errorf("it is used by %q", got)
	}
}

// TestLocalVolumes checks that LocalVolumes returns the volumes of the runtime's own driver, with
// their paths.
func TestLocalVolumes(t *testing.T) {
	r := program(t, "docker", `case "$*" in
"volume ls --filter driver=local --format {{.Name}}	{{.Mountpoint}}") printf 'a\t/l/a b\nc\t\n';;
*) exit 1;;
esac`)
	if got, err := r.LocalVolumes(t.Context()); err != nil || !slices.Equal(got, []LocalVolume{{"a", "/l/a b"}, {"c", ""}}) {
		t.Errorf("they are %q, %v", got, err)
	}
	if !r.Installed() || New("no-such-runtime").Installed() {
		t.Error("it cannot be told which runtime is installed")
	}
	if got, err := program(t, "docker", "exit 1").LocalVolumes(t.Context()); err == nil {
		t.Errorf("of a runtime that fails: %q", got)
	}
}

// TestPluginTimeout checks that PluginTimeout reads the timeout from podman's configuration files.
// The last file that sets the timeout must take effect.
func TestPluginTimeout(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none := filepath.Join(dir, "none")
	a := file("a", "[engine]\n# volume_plugin_timeout = 7\nvolume_plugin_timeout = 30 # seconds\n")
	b := file("b", "[engine]\nvolume_plugin_timeout=60\n")
	bad := file("bad", "volume_plugin_timeout = 0\nvolume_plugin_timeout = soon\n"+strings.Repeat("x", 1<<17))
	for _, c := range []struct {
		files []string
		want  time.Duration
	}{
		{nil, 5 * time.Second}, {[]string{none}, 5 * time.Second}, {[]string{a}, 30 * time.Second},
		{[]string{a, none, b}, time.Minute}, {[]string{b, a, bad}, 30 * time.Second},
	} {
		if got := pluginTimeout(c.files); got != c.want {
			t.Errorf("%v: %s, want %s", c.files, got, c.want)
		}
	}
	t.Setenv("CONTAINERS_CONF", b)
	if got := PluginTimeout(); got != time.Minute {
		t.Errorf("of the file that podman is given: %s", got)
	}
}
