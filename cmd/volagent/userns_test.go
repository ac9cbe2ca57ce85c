package main_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// remapped are the ids of the host that containers in user namespaces of their own have,
// for docker's --userns-remap=nobody and for podman's --userns=auto.
const remapped = "nobody:200000:65536\nnogroup:200000:65536\ncontainers:300000:1000000\n"

// giveSubIDs puts them over the host's for as long as the test runs.
var giveSubIDs = sync.OnceValue(func() error {
	file := filepath.Join(binDir, "subids")
	if err := os.WriteFile(file, []byte(remapped), 0o644); err != nil {
		return err
	}
	return errors.Join(syscall.Mount(file, "/etc/subuid", "", syscall.MS_BIND, ""), syscall.Mount(file, "/etc/subgid", "", syscall.MS_BIND, ""))
})

// A container whose root is another user on the host reaches its volume, although that user
// cannot enter the directories that lead to the target. So does one that is given the target
// of a claim.
func TestRuntimeUserNamespaces(t *testing.T) {
	if err := giveSubIDs(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(syscall.Unmount("/etc/subuid", 0), syscall.Unmount("/etc/subgid", 0)); err != nil {
			t.Error(err)
		}
	})
	for name, tt := range map[string]struct {
		box  *box
		args []string
	}{
		"docker": {box: &box{name: "docker", plain: true, more: []string{"--userns-remap=nobody:nogroup"}}},
		"podman": {box: &box{name: "podman", plain: true}, args: []string{"--userns=auto"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServed(t, ownBox(t, tt.box))
			data, public := s.unique("data"), s.unique("public")
			s.volctl("volume", "create", data, "--plugin", "local")
			s.volctl("volume", "create", public, "--plugin", "local")
			target := s.volctl("volume", "claim", public, "--mode", "0777")
			if out, err := s.create(data, "mode=0777"); err != nil {
				t.Fatalf("create: %s", out)
			}
			args := s.runArgs(s.unique("c"), data+":/data", target+":/public")
			args = append(append([]string{"run"}, tt.args...), args[1:]...)
			s.box.must(t, args...)
			t.Cleanup(func() { _, _ = s.box.run("rm", "-f", s.unique("c")) })
			s.sh(s.unique("c"), "echo kept > /data/f && echo kept > /public/f")
			if from := s.sh(s.unique("c"), "cat /proc/self/uid_map"); strings.HasPrefix(strings.TrimSpace(from), "0          0 ") {
				t.Fatalf("the container is in the host's user namespace: %s", from)
			}
			for _, path := range []string{target, s.inspect(data).Mountpoint} {
				var st syscall.Stat_t
				s.must(syscall.Stat(path+"/f", &st))
				if st.Uid < 200000 {
					t.Errorf("%s was written by user %d of the host", path, st.Uid)
				}
			}
			if got := s.mode("local", "per-alloc", name); got != 0o700 {
				t.Errorf("the directory of the runtime's targets has mode %o", got)
			}
			s.await("the container to go", func() bool { // a mount namespace of another test may hold its mounts for a moment
				_, err := s.box.run("rm", "-f", s.unique("c"))
				return err == nil
			})
			s.volctl("volume", "detach", public)
			s.clean()
			s.box.must(t, "volume", "rm", data)
		})
	}
}
