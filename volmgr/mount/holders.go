package mount

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/volagent/volagent/volmgr/proc"
)

// Holder is one user of a mount. It prevents the unmount, or keeps the file system active after a
// lazy unmount.
type Holder struct {
	PID     int    // 0 for the kernel itself
	Command string // the short name of the process
	Unit    string // the systemd unit of the process; empty if there is none

	// How is the kind of use: "cwd", "root directory", "open file", "running program", "mapped
	// file", "mount namespace", "mount", "loop device" or "swap".
	How  string
	Path string // the file or directory that is used; empty if it is unknown
}

// String describes the holder for messages.
func (o Holder) String() string {
	what := o.How
	if o.Path != "" {
		what = fmt.Sprintf("%s %q", o.How, o.Path)
	}
	switch {
	case o.PID == 0:
		return what
	case o.Unit == "":
		return fmt.Sprintf("pid %d %s, %s", o.PID, o.Command, what)
	default:
		return fmt.Sprintf("pid %d %s (%s), %s", o.PID, o.Command, o.Unit, what)
	}
}

// mostHolders limits the number of reported holders. Operators do not read a longer list.
const mostHolders = 20

// Holders returns at most mostHolders users of the mount at path. The list is a hint for operators
// and proves nothing: it may be empty because the agent cannot see the users. Holders does not
// access the mount, so it also works for a mount that hangs.
func (h *Host) Holders(path string) []Holder {
	path = filepath.Clean(path)
	c := &collector{r: &h.reader, path: path}
	// After an error or the time limit, Holders returns the users that were found so far.
	_ = h.gate.do(context.Background(), kindScan, path, func() error { c.run(); return nil })
	return c.take()
}

// collector collects holders. It may still run after its caller has stopped waiting.
type collector struct {
	r       *reader
	path    string
	mounts  map[int]bool // the ids of the mounts at and below path
	devices map[string]bool

	mu    sync.Mutex
	found []Holder
}

func (c *collector) take() []Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.found)
}

// full reports whether the collector has found enough holders.
func (c *collector) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.found) >= mostHolders
}

func (c *collector) add(pid int, how, path string) {
	o := Holder{PID: pid, How: how, Path: path}
	if pid != 0 {
		o.Command, o.Unit = c.r.command(pid), c.r.unit(pid)
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	if len(c.found) < mostHolders {
		c.found = append(c.found, o)
	}
}

func (c *collector) run() {
	if !c.table() {
		return
	}

	c.kernel()
	pids, err := c.r.processes()
	if err != nil {
		return
	}

	own := c.r.ownSpace()
	var here []int
	for _, pid := range pids {
		if c.full() {
			return
		}
		// In another namespace, the same path may lead to another mount. Therefore links are
		// checked only in the agent's own namespace.
		if name, err := os.Readlink(c.r.procPath(pid, "ns/mnt")); err == nil && name == own {
			here = append(here, pid)
			c.links(pid)
		}
		c.files(pid)
	}

	c.spaces()
	// Mapped files come last, because reading the maps of a hanging process can hang too.
	for _, pid := range here {
		if c.full() {
			return
		}

		c.maps(pid)
	}
}

// table finds the mounts at and below path, and reports whether there are any.
func (c *collector) table() bool {
	table, err := c.r.table(func(m *proc.Mount) (bool, bool) { return !within(m.Mountpoint, c.path), false })
	if err != nil {
		return false
	}

	c.mounts, c.devices = map[int]bool{}, map[string]bool{}
	for _, m := range table {
		c.mounts[m.ID] = true
		if m.Mountpoint == c.path {
			p := c.r.fromInfo(m)
			c.devices[p.id.Device+p.id.Root] = true
		} else {
			c.add(0, "mount", m.Mountpoint)
		}
	}

	return len(table) > 0
}

// kernel finds loop devices and swap areas that use files of the mount.
func (c *collector) kernel() {
	// Glob fails only for an invalid pattern.
	loops, _ := filepath.Glob(string(c.r.sysfs) + "/block/loop*/loop/backing_file")
	for _, f := range loops {
		data, err := os.ReadFile(f)
		if file := strings.TrimSuffix(string(data), "\n"); err == nil && within(file, c.path) {
			c.add(0, "loop device", file)
		}
	}

	swaps, err := os.ReadFile(string(c.r.procfs) + "/swaps")
	if err != nil {
		return
	}

	for line := range strings.Lines(string(swaps)) {
		if file, _, _ := strings.Cut(line, " "); within(file, c.path) {
			c.add(0, "swap", file)
		}
	}
}

// links checks the working directory, the root directory and the program of a process. It only
// reads these links and does not follow them.
func (c *collector) links(pid int) {
	for _, l := range []struct{ name, how string }{
		{"cwd", "cwd"}, {"root", "root directory"}, {"exe", "running program"},
	} {
		to, err := os.Readlink(c.r.procPath(pid, l.name))
		if err == nil && within(to, c.path) {
			c.add(pid, l.how, to)
		}
	}
}

// files checks the open files of a process by their mount ids. A mount id is the same in every
// namespace.
func (c *collector) files(pid int) {
	fds, err := numbers(c.r.procPath(pid, "fd"))
	if err != nil {
		return
	}

	for _, fd := range fds {
		to, err := os.Readlink(c.r.procPath(pid, "fd/"+strconv.Itoa(fd)))
		if err != nil || !strings.HasPrefix(to, "/") {
			continue
		}

		id, err := c.r.fdMountID(strconv.Itoa(pid), fd)
		if err == nil && c.mounts[id] {
			c.add(pid, "open file", to)
			return
		}
	}
}

// spaces finds other mount namespaces that contain the mount.
func (c *collector) spaces() {
	spaces, _, err := c.r.spaces()
	if err != nil {
		return
	}

	for _, s := range spaces {
		if s.name == c.r.ownSpace() {
			continue
		}

		table, err := s.mounts(nil, func(m *proc.Mount) (bool, bool) {
			p := c.r.fromInfo(m)
			return !c.devices[p.id.Device+p.id.Root], false
		})
		if err == nil && len(table) > 0 {
			c.add(s.pid, "mount namespace", table[0].Mountpoint)
		}
	}
}

// maps checks the mapped files of a process.
func (c *collector) maps(pid int) {
	f, err := os.Open(c.r.procPath(pid, "maps"))
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }() // a file opened for reading has no data to lose
	for lines := proc.NewLines(f); ; {
		line, err := lines.Next()
		if err != nil {
			return
		}

		at := bytes.IndexByte(line, '/')
		if at < 0 {
			continue
		}
		if file := strings.TrimSuffix(string(line[at:]), "\n"); within(file, c.path) {
			if exe, err := os.Readlink(c.r.procPath(pid, "exe")); err == nil && exe == file {
				continue // links has already reported the running program
			}
			c.add(pid, "mapped file", file)
			return
		}
	}
}
