package lab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// PowerOn boots the host with a new boot id, unless the field Beside names another host. It starts neither the agent nor etcd.
func (h *Host) PowerOn() {
	h.T.Helper()
	if h.On() {
		h.T.Fatalf("%s is already on", h.Name)
	}
	var err error
	h.space, err = newSpace(hostKinds...)
	h.Must(err)
	h.bootID = randomUUID()
	if h.Beside != nil {
		h.bootID = h.Beside.bootID
	}
	// The thread of enter is in another pid namespace, so only a command can mount this /proc.
	h.Must(h.space.run("", "mount", "-t", "proc", "proc", "/proc"))
	h.Must(h.Enter(h.setIdentity))
	h.Must(h.network.plugIn(h.port()))
}

// PowerOff switches the host off. It first disconnects the host, so that no other host receives a
// packet because of it, and then kills all processes. Mounts and files of the runtime directory do not
// survive.
func (h *Host) PowerOff() {
	h.T.Helper()
	h.Must(h.network.pullOut(h.port()))
	h.Must(h.powerOff())
	harness.RemoveRuntimeFiles(h.Host)
}

// Reboot switches the host off and on again. It starts neither the agent nor etcd.
func (h *Host) Reboot() {
	h.T.Helper()
	h.PowerOff()
	h.PowerOn()
}

// port returns the end of the network in the namespaces of the host.
func (h *Host) port() port {
	return port{name: h.Name, number: h.number, address: h.Address, space: h.space}
}

// powerOff kills all processes of the host and removes its namespaces.
func (h *Host) powerOff() error {
	s := h.space
	h.space = nil
	return s.close(func() {
		if h.Cmd != nil {
			_ = h.Cmd.Wait() // Wait returns an error because the agent was killed
			h.Cmd = nil
		}
		for _, p := range h.started {
			<-p.ended
		}
		h.started = nil
	})
}

// end switches the host off at the end of a test.
func (h *Host) end() {
	if h.On() {
		if err := h.powerOff(); err != nil {
			h.T.Errorf("cannot end %s: %v", h.Name, err)
		}
	}
}

// setIdentity gives the host its name and its ids. The calling thread must be on the host.
func (h *Host) setIdentity() error {
	const dmi = "/sys/class/dmi/id"
	err := errors.Join(unix.Sethostname([]byte(h.Name)),
		h.plant("/proc/sys/kernel/random", "boot_id", h.bootID),
		h.plant("/etc", "machine-id", h.MachineID))
	if h.ProductUUID != "" {
		return errors.Join(err, h.plant("/sys/class", "dmi/id/product_uuid", h.ProductUUID))
	}
	if _, e := os.Stat(dmi); e == nil {
		err = errors.Join(err, unix.Mount("tmpfs", dmi, "tmpfs", unix.MS_RDONLY, ""))
	}
	return err
}

// plant mounts a file with the given line at the path name below dir. If the machine does not have
// this file, plant mounts a read-only overlay with the file over dir.
func (h *Host) plant(dir, name, line string) error {
	top := filepath.Join(h.identity, filepath.Base(dir))
	file := filepath.Join(top, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(line+"\n"), 0o444)); err != nil {
		return err
	}
	to := filepath.Join(dir, name)
	if _, err := os.Stat(to); errors.Is(err, fs.ErrNotExist) {
		return unix.Mount("overlay", dir, "overlay", unix.MS_RDONLY, "lowerdir="+top+":"+dir)
	}
	return unix.Mount(file, to, "", unix.MS_BIND, "")
}

// randomHex returns random bytes as hexadecimal digits.
func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// randomUUID returns a random UUID.
func randomUUID() string {
	x := randomHex(16)
	return x[:8] + "-" + x[8:12] + "-4" + x[13:16] + "-8" + x[17:20] + "-" + x[20:]
}
