package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
)

// mostHolders is the maximum number of holders in an error message.
const mostHolders = 8

// holder is a process, a mount or a loop device that keeps a mount busy.
type holder struct {
	pid        string
	name, unit string
	how        string // how the holder uses the mount, with the path of the file or directory
	fix        string // the command that ends the use, unless the holder is a process
}

func (h holder) String() string {
	switch {
	case h.pid == "":
		return h.how
	case h.unit == "":
		return fmt.Sprintf("pid %s %s, %s", h.pid, h.name, h.how)
	}
	return fmt.Sprintf("pid %s %s (%s), %s", h.pid, h.name, h.unit, h.how)
}

// busy returns the error for an unmount that the kernel refused because the mount is in use. The
// error lists the users of the mount that this process can see. The agent would not see more of
// them.
func busy(dir string, host Host) error {
	found := holders(dir, host)
	words := make([]string, len(found))
	for i, h := range found {
		words[i] = h.String()
	}

	e := &api.Error{Code: api.CodeRefused, Message: "target is busy", Hint: "stop its users, or unmount it lazily: " + suggest.Command("umount -l %s", dir)}
	if len(words) > 0 {
		e.Message += ", held by " + strings.Join(words, "; ")
		e.Details = map[string]string{api.DetailHeldBy: strings.Join(words, "; ")}
	}

	if units := units(found); len(units) > 0 {
		e.Hint = suggest.Command("systemctl stop %s", units)
	}

	if len(found) > 0 && found[0].fix != "" {
		e.Hint = found[0].fix
	}

	return e
}

// units returns the systemd services to which the processes belong.
func units(found []holder) (names []string) {
	for _, h := range found {
		if suggest.Stoppable(h.unit) && !slices.Contains(names, h.unit) {
			names = append(names, h.unit)
		}
	}
	return names
}

// holders finds the mounts below a directory, the loop devices with backing files in it, and the
// processes that use it. A process can use the directory as its working directory or root, or
// through its program, an open file or a mapped file. holders reads only the targets of links in
// /proc, so slow storage cannot block it.
func holders(dir string, host Host) (found []holder) {
	if text, err := host.Mounts(); err == nil {
		for _, m := range readTable(text) {
			if m.path != dir && within(m.path, dir) {
				found = append(found, holder{how: fmt.Sprintf("mount %q", m.path), fix: suggest.Command("umount %s", m.path)})
			}
		}
	}

	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is valid
	for _, f := range loops {
		text, _ := os.ReadFile(f) // the text is empty if the device has gone
		if file := strings.TrimSuffix(string(text), "\n"); within(file, dir) {
			found = append(found, holder{how: fmt.Sprintf("loop device on %q", file), fix: suggest.Command("losetup -d %s", "/dev/"+strings.Split(f, "/")[3])})
		}
	}

	own, _ := os.Readlink("/proc/self/ns/mnt") // without /proc, holders finds no processes
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range procs {
		if len(found) >= mostHolders {
			break
		}

		// In a different mount namespace, the same path refers to a different directory.
		if space, err := os.Readlink(proc + "/ns/mnt"); err != nil || space != own {
			continue
		}

		if how := uses(proc, dir); how != "" {
			found = append(found, process(proc, how))
		}
	}

	return found
}

// uses describes how a process uses a directory. If the process does not use the directory, it
// returns "".
func uses(proc, dir string) string {
	for _, l := range []struct{ name, how string }{{"cwd", "cwd"}, {"root", "root directory"}, {"exe", "running program"}} {
		if to, err := os.Readlink(proc + "/" + l.name); err == nil && within(to, dir) {
			return fmt.Sprintf("%s %q", l.how, to)
		}
	}

	for _, files := range []struct{ name, how string }{{"fd", "open file"}, {"map_files", "mapped file"}} {
		// The list is empty if the process belongs to another user.
		entries, _ := os.ReadDir(proc + "/" + files.name)
		for _, e := range entries {
			if to, err := os.Readlink(proc + "/" + files.name + "/" + e.Name()); err == nil && within(to, dir) {
				return fmt.Sprintf("%s %q", files.how, to)
			}
		}
	}

	return ""
}

// process returns a holder for the process with the given directory in /proc.
func process(proc, how string) holder {
	name, _ := os.ReadFile(proc + "/comm") // the name is empty if the process has ended
	cgroup, _ := os.ReadFile(proc + "/cgroup")
	return holder{pid: filepath.Base(proc), name: strings.TrimSpace(string(name)), unit: suggest.UnitOf(string(cgroup)), how: how}
}
