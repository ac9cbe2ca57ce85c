package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
)

// TestHosts checks that two hosts of the lab have different ids, mounts and processes.
func TestHosts(t *testing.T) {
	t.Parallel()
	l := lab.New(t, 2)
	h1, h2 := l.Hosts[0], l.Hosts[1]
	for _, file := range []string{"/proc/sys/kernel/random/boot_id", "/etc/machine-id", "/sys/class/dmi/id/product_uuid", "/proc/sys/kernel/hostname"} {
		machine, _ := os.ReadFile(file) // some machines have no DMI
		one, two := readFile(h1, file), readFile(h2, file)
		if one == two || one == string(machine) || two == string(machine) || len(one) < 2 {
			t.Errorf("%s is %q and %q, and on the machine %q", file, one, two, machine)
		}
	}

	h1.MustRun("mkdir", h1.Dir+"/mnt")
	h1.MustRun("mount", "-t", "tmpfs", "tmpfs", h1.Dir+"/mnt")
	h1.Must(h1.WriteFile(h1.Dir+"/mnt/file", []byte("seen")))
	if got := readFile(h1, h1.Dir+"/mnt/file"); got != "seen" {
		t.Errorf("h1 sees %q in its mount", got)
	}
	if _, err := h2.ReadFile(h1.Dir + "/mnt/file"); !os.IsNotExist(err) {
		t.Errorf("h2 sees the mount of h1: %v", err)
	}
	if _, err := os.Stat(h1.Dir + "/mnt/file"); !os.IsNotExist(err) {
		t.Errorf("the test sees the mount of h1: %v", err)
	}
	if h1.Mounts() == "" {
		t.Error("h1 has no mounts in its directory")
	}

	p := h1.StartSleeper(h1.Dir)
	if h1.Run("kill", "-0", fmt.Sprint(p.Inner)).Code != 0 || h1.Place.PID(p.Inner) != p.Pid {
		t.Errorf("the process has the pids %d and %d, and the host finds %d", p.Inner, p.Pid, h1.Place.PID(p.Inner))
	}
	if out := h2.MustRun("ps", "-e", "-o", "args="); strings.Count(out, "sleep infinity") != 1 {
		t.Errorf("h2 sees processes that are not its own:\n%s", out)
	}
	if err := p.End(syscall.SIGTERM); err == nil || !p.Ended() {
		t.Errorf("the process ended with %v", err)
	}
}

// TestWithoutDMI checks that a host can be without DMI.
func TestWithoutDMI(t *testing.T) {
	t.Parallel()
	h := lab.New(t, 1, lab.WithoutDMI()).Hosts[0]
	if raw, err := h.ReadFile("/sys/class/dmi/id/product_uuid"); !os.IsNotExist(err) {
		t.Errorf("the product UUID is %q, %v", raw, err)
	}
}

// TestReboot checks that a reboot gives the host a new boot id, and ends its processes and mounts. The
// ids of the machine and the data directory stay.
func TestReboot(t *testing.T) {
	t.Parallel()
	h := lab.New(t, 1).Hosts[0]
	machine := readFile(h, "/etc/machine-id") + readFile(h, "/sys/class/dmi/id/product_uuid")
	h.Start("local")
	createVolume(h, "data")
	path := h.Volctl("volume", "claim", "data", "--alloc", "a")
	h.Must(h.WriteFile(filepath.Join(path, "file"), []byte("kept")))
	h.MustRun("sync")
	boot, sleeper := readFile(h, "/proc/sys/kernel/random/boot_id"), h.StartSleeper(path)
	id := h.BootID()

	h.Reboot()
	if now := readFile(h, "/proc/sys/kernel/random/boot_id"); now == boot || now != h.BootID()+"\n" || id+"\n" != boot {
		t.Errorf("the boot id was %q (%s), and is %q (%s)", boot, id, now, h.BootID())
	}
	if now := readFile(h, "/etc/machine-id") + readFile(h, "/sys/class/dmi/id/product_uuid"); now != machine {
		t.Errorf("the machine's ids were %q, and are %q", machine, now)
	}
	if !sleeper.Ended() || h.Cmd != nil || h.Mounts() != "" {
		t.Errorf("processes or mounts outlived the reboot:\n%s", h.Mounts())
	}
	if files, err := os.ReadDir(filepath.Dir(h.Socket())); err != nil || len(files) > 0 {
		t.Errorf("the runtime directory has %v, %v", files, err)
	}

	h.Start("local")
	h.Volctl("volume", "detach", "data", "a")
	path = h.Volctl("volume", "claim", "data", "--alloc", "b")
	if got := readFile(h, filepath.Join(path, "file")); got != "kept" {
		t.Errorf("the data is %q", got)
	}
}

// TestAgents checks that an agent runs on each host, and that the harness controls it.
func TestAgents(t *testing.T) {
	t.Parallel()
	l := lab.New(t, 2)
	h1, h2 := l.Hosts[0], l.Hosts[1]
	paths := map[*lab.Host]string{}
	for _, h := range l.Hosts {
		h.Start("local")
		createVolume(h, "data")
		sleeper := h.StartSleeper("/")
		paths[h] = h.Volctl("volume", "claim", "data", "--alloc", h.Name, "--owner", sleeper.Owner())
		h.Must(h.WriteFile(filepath.Join(paths[h], "file"), []byte(h.Name)))
		h.Await("the end of the claim", func() bool {
			if !sleeper.Ended() {
				h.Must(sleeper.Kill())
			}
			return len(h.Claims()) == 0
		})
		paths[h] = h.Volctl("volume", "claim", "data", "--alloc", h.Name)
	}
	for h, path := range paths {
		if got := readFile(h, filepath.Join(path, "file")); got != h.Name {
			t.Errorf("the volume on %s holds %q", h.Name, got)
		}
	}
	if !slices.Equal(h1.Claims(), []string{"data h1"}) || !slices.Equal(h2.Claims(), []string{"data h2"}) {
		t.Errorf("claims are %q and %q", h1.Claims(), h2.Claims())
	}

	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", h1.PluginPID("local"))); err != nil || exe != harness.BinDir+"/volagent" {
		t.Errorf("the plugin's pid is that of %q, %v", exe, err)
	}
	h1.Freeze()
	answer := h1.StartVolctl("claim", "list")
	h2.Volctl("claim", "list") // takes about as long
	if len(answer) > 0 {
		t.Errorf("a frozen agent answers: %v", <-answer)
	}
	h1.Thaw()
	if r := <-answer; r.Code != 0 {
		t.Errorf("after it was frozen, the agent answers %v", r)
	}
	h1.Stop()
	h1.Start("local")
	if !slices.Equal(h1.Claims(), []string{"data h1"}) {
		t.Errorf("after a restart, claims are %q", h1.Claims())
	}
}

// createVolume creates a directory volume of the bundled driver.
func createVolume(h *lab.Host, id string) {
	h.T.Helper()
	h.Volctl("volume", "create", id, "--plugin", "local", "--param", "type=directory")
}

// readFile returns the content of a file on a host.
func readFile(h *lab.Host, path string) string {
	h.T.Helper()
	raw, err := h.ReadFile(path)
	h.Must(err)
	return string(raw)
}
