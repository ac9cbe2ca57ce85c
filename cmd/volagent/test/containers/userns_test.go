package containers_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// remapped contains subordinate ids for containers with their own user namespaces. The options
// --userns-remap=nobody of docker and --userns=auto of podman need them.
const remapped = "nobody:200000:65536\nnogroup:200000:65536\ncontainers:300000:1000000\n"

// giveSubIDs mounts a file that contains remapped over the host's /etc/subuid and /etc/subgid.
var giveSubIDs = sync.OnceValue(func() error {
	file := filepath.Join(harness.BinDir, "subids")
	if err := os.WriteFile(file, []byte(remapped), 0o644); err != nil {
		return err
	}
	return errors.Join(syscall.Mount(file, "/etc/subuid", "", syscall.MS_BIND, ""), syscall.Mount(file, "/etc/subgid", "", syscall.MS_BIND, ""))
})

// TestRuntimeUserNamespaces checks a container whose root user is an unprivileged user on the host.
// The container must reach its volume, although the unprivileged user cannot enter the directories
// above the target. The container must also reach the target of a claim that docker or podman
// bind-mounts into the container.
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
		box  *harness.Box
		args []string
	}{
		"docker": {box: &harness.Box{Name: "docker", Plain: true, MoreArgs: []string{"--userns-remap=nobody:nogroup"}}},
		"podman": {box: &harness.Box{Name: "podman", Plain: true}, args: []string{"--userns=auto"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServed(t, harness.OwnBox(t, tt.box))
			data, public := s.unique("data"), s.unique("public")
			s.Volctl("volume", "create", data, "--plugin", "local")
			s.Volctl("volume", "create", public, "--plugin", "local")
			target := s.Volctl("volume", "claim", public, "--mode", "0777")
			if out, err := s.create(data, "mode=0777"); err != nil {
				t.Fatalf("create: %s", out)
			}
			args := s.runArgs(s.unique("c"), data+":/data", target+":/public")
			args = append(append([]string{"run"}, tt.args...), args[1:]...)
			s.box.Must(t, args...)
			t.Cleanup(func() { _, _ = s.box.Run("rm", "-f", s.unique("c")) })
			s.sh(s.unique("c"), "echo kept > /data/f && echo kept > /public/f")
			if from := s.sh(s.unique("c"), "cat /proc/self/uid_map"); strings.HasPrefix(strings.TrimSpace(from), "0          0 ") {
				t.Fatalf("the container is in the host's user namespace: %s", from)
			}
			for _, path := range []string{target, s.inspect(data).Mountpoint} {
				var st syscall.Stat_t
				s.Must(syscall.Stat(path+"/f", &st))
				if st.Uid < 200000 {
					t.Errorf("%s was written by user %d of the host", path, st.Uid)
				}
			}
			if got := harness.DirMode(s.Host, "local", "per-alloc", name); got != 0o700 {
				t.Errorf("the directory of the runtime's targets has mode %o", got)
			}
			s.gone(s.unique("c"))
			s.Volctl("volume", "detach", public)
			s.clean()
			s.box.Must(t, "volume", "rm", data)
			if name == "docker" {
				s.rootsVolumes()
			} else {
				s.podmansRoot(tt.args)
			}
		})
	}
}

// rootsVolumes checks the owner of the root directory of docker volumes. If docker creates the
// volume, the directory belongs to the root user of docker's containers. An owner in the options of
// the create command takes precedence, and an owner that a container sets later remains. A volume
// that existed before docker used it keeps its owner.
func (s served) rootsVolumes() {
	const inside, outside = "200000:200000", "0:0"
	old, name := s.unique("old"), s.unique("root")
	s.Volctl("volume", "create", old, "--plugin", "local")
	volumes := []struct {
		name string
		opts []string
		want string
	}{
		{s.unique("ext4"), []string{"plugin=local", "size=16MiB", "fs_type=ext4"}, inside + " 0755"},
		{s.unique("dir"), []string{"plugin=local", "param.type=directory"}, inside + " 0755"},
		{s.unique("mode"), []string{"plugin=local", "param.type=directory", "mode=0770"}, inside + " 0770"},
		{s.unique("uid"), []string{"plugin=local", "param.type=directory", "uid=200005"}, "200005:0 0755"},
		{s.unique("reads"), []string{"plugin=local", "param.type=directory", "mount_flags=ro"}, outside + " 0755"},
		{old, nil, outside + " 0755"},
	}
	args := []string{}
	for _, v := range volumes {
		for range 2 {
			if out, err := s.create(v.name, v.opts...); err != nil {
				s.T.Errorf("create %s: %s", v.name, out)
			}
		}
		args = append(args, v.name+":/"+v.name)
	}
	s.run(name, args...)
	for _, v := range volumes {
		if got := harness.OwnerAndMode(s.Host, s.inspect(v.name).Mountpoint); got != v.want {
			s.T.Errorf("the root of %s has %s, want %s", v.name, got, v.want)
		}
	}
	for _, v := range volumes[:3] {
		s.sh(name, "echo kept > /"+v.name+"/f")
	}
	if got := s.Volctl("events", "--volume", volumes[4].name); !strings.Contains(got, "the root keeps its owner") {
		s.T.Errorf("no event says that the owner was refused:\n%s", got)
	}

	// Changes that a container makes to its volume survive a remount.
	dir := volumes[1].name
	s.sh(name, "/bin/busybox chown 7:8 /"+dir)
	s.gone(name)
	s.clean()
	s.run(name, dir+":/data")
	if got := harness.OwnerAndMode(s.Host, s.inspect(dir).Mountpoint); got != "200007:200008 0755" {
		s.T.Errorf("the root that a container gave away has %s", got)
	}
	s.gone(name)
	s.clean()
	for _, v := range volumes {
		s.box.Must(s.T, "volume", "rm", v.name)
	}
}

// podmansRoot checks the option U of podman, which makes the container's root user the owner of the
// volume.
func (s served) podmansRoot(userns []string) {
	own, name := s.unique("own"), s.unique("root")
	if out, err := s.create(own, "plugin=local"); err != nil {
		s.T.Fatalf("create: %s", out)
	}
	args := s.runArgs(name, own+":/data:U")
	s.box.Must(s.T, append(append([]string{"run"}, userns...), args[1:]...)...)
	s.T.Cleanup(func() { _, _ = s.box.Run("rm", "-f", name) })
	s.sh(name, "echo kept > /data/f")
	s.gone(name)
	s.clean()
	s.box.Must(s.T, "volume", "rm", own)
}

// gone removes a container. It retries, because a mount namespace of another test may still contain
// the mounts for a moment.
func (s served) gone(name string) {
	s.T.Helper()
	s.Await("the container to go", func() bool {
		_, err := s.box.Run("rm", "-f", name)
		return err == nil
	})
}
