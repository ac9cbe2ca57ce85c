package containers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestRuntimeClass checks that the volume plugin of docker creates volumes with a class.
func TestRuntimeClass(t *testing.T) {
	t.Parallel()
	s := newServed(t, &harness.Box{Name: "docker"}) // this test uses no docker daemon
	dir := s.Mkdir("classes.d")
	text := "plugin_id: local\nsize: {default: 32MiB, max: 64MiB}\nparameters: {type: image}\nreclaim: delete\n"
	s.Must(os.WriteFile(filepath.Join(dir, "fast.yaml"), []byte(text), 0o644))
	s.MoreArgs = append(s.MoreArgs, "--classes-dir", dir)
	s.Must(s.Signal(syscall.SIGTERM))
	s.Start("local")

	create := func(name string, opts map[string]string) (code int, answer string) {
		code, got := s.call("VolumeDriver.Create", map[string]any{"Name": name, "Opts": opts})
		return code, fmt.Sprint(got["Err"])
	}
	for name, opts := range map[string]map[string]string{"plain": {"class": "fast"}, "sized": {"class": "fast", "size": "48MiB"}} {
		for range 2 { // the second call changes nothing
			if code, answer := create(name, opts); code != 200 {
				t.Fatalf("%s: %s", name, answer)
			}
		}
	}
	const shown = "go-template={{.class}} {{.capacity}} {{.spec.reclaim}}"
	for name, want := range map[string]string{"plain": "fast 33554432 delete", "sized": "fast 50331648 delete"} {
		if got := s.Volctl("volume", "status", name, "-o", shown); strings.TrimSpace(got) != want {
			t.Errorf("%s: %s", name, got)
		}
	}
	for want, opts := range map[string]map[string]string{
		`1GiB is more than class "fast" permits: at most 64MiB`: {"class": "fast", "size": "1GiB"},
		`reclaim: "delete" → "retain"`:                          {"class": "fast", "o": "reclaim=retain"},
		`no class "fats"; the classes are fast`:                 {"class": "fats"},
		`plugin and class exclude each other`:                   {"class": "fast", "plugin": "local"},
	} {
		if code, answer := create("new", opts); code != 500 || !strings.Contains(answer, want) {
			t.Errorf("%v: %d, %s", opts, code, answer)
		}
	}

	if code, answer := s.call("VolumeDriver.Mount", map[string]any{"Name": "plain", "ID": "c1"}); code != 200 {
		t.Fatalf("mount: %v", answer)
	}
	if code, answer := s.call("VolumeDriver.Unmount", map[string]any{"Name": "plain", "ID": "c1"}); code != 200 {
		t.Fatalf("unmount: %v", answer)
	}
	for _, name := range []string{"plain", "sized"} {
		if code, answer := s.call("VolumeDriver.Remove", map[string]any{"Name": name}); code != 200 {
			t.Errorf("remove %s: %v", name, answer)
		}
	}
	if left := strings.TrimSpace(s.Volctl("volume", "list", "-q")); left != "" {
		t.Errorf("volumes remain: %s", left)
	}
}
