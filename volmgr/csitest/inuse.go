package csitest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// notInUse reports a violation if NodeUnstage or ControllerUnpublish takes effect while the storage
// is mounted. It reads the kernel's mount table, so it finds every mount of the storage, even
// mounts that the plugin did not record. If the call also breaks RuleOrder, notInUse reports
// nothing, because one violation is enough.
func (p *Plugin) notInUse(c Call) {
	var except string
	if c.Method == NodeUnstage {
		except = c.StagingPath
	}

	at, err := p.store.mountedAt(c.Volume)
	at = slices.DeleteFunc(at, func(path string) bool { return path == except })

	switch {
	case err != nil:
		p.rec.accuse(c, RuleControl, err.Error())
	case len(at) > 0:
		p.rec.accuse(c, RuleInUse, fmt.Sprintf("the storage is mounted at %s", strings.Join(at, ", ")))
	case c.Method == ControllerUnpublish && busy(loopOf(p.store.path(c.Volume, "block.img"))):
		p.rec.accuse(c, RuleInUse, "the storage is mounted nowhere, and its device is busy")
	}
}

// busy reports whether a device is mounted in any mount namespace, or is still in use after a lazy
// unmount. An empty name means that there is no device.
func busy(device string) bool {
	if device == "" {
		return false
	}

	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd) // the descriptor is not needed, because opening it has shown whether the device is busy
	}

	return errors.Is(err, unix.EBUSY)
}

// mountedAt returns the paths at which the files or the image of a volume are mounted in the
// plugin's mount namespace.
func (s *store) mountedAt(id string) ([]string, error) {
	data, err := device(s.path(id))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	image := s.path(id, "block.img")
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}

	loop := filepath.Base(loopOf(image))
	number, err := deviceNumber(loop)
	if err != nil {
		return nil, err
	}

	var at []string
	lines := bufio.NewScanner(bytes.NewReader(table))
	lines.Buffer(nil, 1<<20)

	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 5 {
			continue
		}

		// The table shows the source of a bind mount relative to the root of its file system, which
		// may be mounted anywhere. The code therefore only checks whether the path ends with this
		// source.
		root := f[3]
		files := f[2] == data && len(root) > 1 && (strings.HasSuffix(s.path(id, "data"), root) || strings.HasSuffix(image, root))
		node := loop != "." && root == "/"+loop
		if files || node || f[2] == number {
			at = append(at, f[4])
		}
	}

	return at, lines.Err()
}

// deviceNumber returns the number of a block device in the format of the mount table.
func deviceNumber(name string) (string, error) {
	if name == "." {
		return "none", nil
	}
	raw, err := os.ReadFile("/sys/block/" + name + "/dev")
	return strings.TrimSpace(string(raw)), err
}

// device returns the number of the device that contains a file, in the format of the mount table.
func device(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)), nil
}

// accuse records a violation of a rule, unless the call has already broken RuleOrder.
func (r *recorder) accuse(c Call, rule Rule, words string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, v := range r.past.Violations {
		if v.Seq == c.Seq && v.Rule == RuleOrder {
			return
		}
	}

	r.violation(Violation{Rule: rule, Words: words, Time: now(), Seq: c.Seq, Method: c.Method, Volume: c.Volume})
}
