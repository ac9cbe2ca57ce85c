package volmgr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/untrusted"
	"github.com/volagent/volagent/volmgr/volume"
)

// NotePath returns the path of a claim's note. The note is in a directory beside the mounts, and
// never below a mount. The components of the name contain no "@", so the "@" between them is
// unambiguous.
func (m *Manager) NotePath(v volume.Volume, alloc string) string {
	name := volume.VolumeComponent(v.ID) + "@" + volume.AllocComponent(alloc) + ".json"
	return filepath.Join(m.o.Root, volume.PluginComponent(v.PluginID), notesDir, name)
}

// WriteNote replaces the note of a claim. It does not sync the note to disk, because a note is
// useful only while its mounts exist. Two calls for the same claim must not run at the same time.
func (m *Manager) WriteNote(n volume.Note) error {
	n.Boot, n.Namespace = m.o.Host.Boot(), m.o.Host.Namespace()
	raw, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("cannot encode a note: %w", err)
	}

	path := m.NotePath(n.Record.Volume, n.Claim.Alloc)
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	err = writeFile(tmp, raw)
	if errors.Is(err, os.ErrNotExist) {
		if err = m.MakeDir(filepath.Dir(filepath.Dir(path))); err == nil {
			err = os.Mkdir(filepath.Dir(path), 0o700)
		}
		if err == nil || errors.Is(err, os.ErrExist) {
			err = writeFile(tmp, raw)
		}
	}
	if err == nil {
		err = os.NewSyscallError("rename", syscall.Rename(tmp, path))
	}
	if err != nil {
		_ = os.Remove(tmp) // the write has failed, and the next write replaces this file
		return fmt.Errorf("cannot write a note of the claim of %q on volume %q: %w", n.Claim.Alloc, n.Record.Volume.ID, err)
	}

	return nil
}

// writeFile writes a file like os.WriteFile. It uses only half as many system calls, because a
// claim waits for it. It does not block on a FIFO and does not follow symbolic links.
func writeFile(path string, raw []byte) error {
	fd, err := -1, error(syscall.EINTR)
	for errors.Is(err, syscall.EINTR) {
		fd, err = syscall.Open(path, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_TRUNC|syscall.O_CLOEXEC|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0o600)
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}

	f := os.NewFile(uintptr(fd), path) // os.OpenFile would make additional system calls for epoll
	_, err = f.Write(raw)
	return errors.Join(err, f.Close())
}

// DropNote removes the note of a claim. It succeeds if the note does not exist.
func (m *Manager) DropNote(v volume.Volume, alloc string) error {
	if err := os.Remove(m.NotePath(v, alloc)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove the note of the claim of %q on volume %q: %w", alloc, v.ID, err)
	}
	return nil
}

// HasNote reports whether a claim has a note.
func (m *Manager) HasNote(v volume.Volume, alloc string) bool {
	_, err := os.Lstat(m.NotePath(v, alloc))
	return err == nil
}

// Notes reads all notes, except those at the paths in skip. The result bad contains an error for
// each invalid note. An invalid note remains in place.
func (m *Manager) Notes(skip map[string]bool) (notes []volume.Note, bad []error) {
	plugins, err := os.ReadDir(m.o.Root)
	if err != nil {
		return nil, []error{fmt.Errorf("cannot look for notes: %w", err)}
	}

	for _, p := range plugins {
		dir := filepath.Join(m.o.Root, p.Name(), notesDir)
		files, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			bad = append(bad, fmt.Errorf("cannot look for notes: %w", err))
		}
		for _, f := range files {
			path := filepath.Join(dir, f.Name())
			if skip[path] || strings.HasPrefix(f.Name(), ".") {
				continue // a name with a leading dot belongs to a temporary file
			}
			n, err := m.readNote(path)
			if err != nil {
				bad = append(bad, err)
				continue
			}
			notes = append(notes, n)
		}
	}

	return notes, bad
}

// maxNote is the maximum size of a note that the agent accepts, in bytes. A note with large
// contexts of its volume has some tens of KiB.
const maxNote = 4 << 20

// readNote reads a note and checks that its content matches its file name.
func (m *Manager) readNote(path string) (n volume.Note, err error) {
	raw, err := untrusted.ReadFile(path, maxNote)
	if err == nil {
		err = json.Unmarshal(raw, &n)
	}
	if err == nil {
		err = n.Check()
	}
	if err == nil && m.NotePath(n.Record.Volume, n.Claim.Alloc) != path {
		err = fmt.Errorf("it is about the claim of %q on volume %q of plugin %q", n.Claim.Alloc, n.Record.Volume.ID, n.Record.Volume.PluginID)
	}
	if err != nil {
		return n, &BadNote{Path: path, Err: err}
	}
	return n, nil
}

// BadNote is the error for an invalid note.
type BadNote struct {
	Path string
	Err  error
}

// Error implements error.
func (b *BadNote) Error() string { return fmt.Sprintf("cannot use the note %s: %v", b.Path, b.Err) }

// Unwrap returns the reason why the note is invalid.
func (b *BadNote) Unwrap() error { return b.Err }

// adoptWithin is the time limit for the observation of all volumes that have notes. If a mount does
// not answer within this time, the agent uses only its entry in the mount table. At most
// adoptAtOnce volumes are observed concurrently.
const (
	adoptWithin = 8 * time.Second
	adoptAtOnce = 16
)

// Adopt rebuilds the records of volumes from notes and the present mounts. It changes nothing on
// the host.
func (m *Manager) Adopt(ctx context.Context, notes []volume.Note) []volume.Record {
	ctx, cancel := context.WithTimeout(ctx, adoptWithin)
	defer cancel()
	live := map[string]bool{}

	for _, n := range notes {
		if n.Boot == m.o.Host.Boot() && n.Namespace == m.o.Host.Namespace() {
			live[n.Record.Volume.ID] = true
		}
	}

	records := volume.Gather(notes)
	table := sync.OnceValues(func() ([]mount.Entry, error) { return m.o.Host.Under(m.o.Root) })
	var wg sync.WaitGroup
	slots := make(chan struct{}, adoptAtOnce)

	for i, r := range records {
		slots <- struct{}{}
		wg.Go(func() {
			records[i] = volume.Adopt(r, recognise(r, m.Observe(ctx, r, volume.Glimpse{}), table), live[r.Volume.ID])
			<-slots
		})
	}

	wg.Wait()
	return records
}

// recognise adds the identities of mounts that did not answer to an observation. It reads the
// identities from the mount table and opens no mount. The mount table does not contain the unique
// mount id.
func recognise(r volume.Record, o volume.Observed, table func() ([]mount.Entry, error)) volume.Observed {
	know := func(path string, s volume.Sight, noted *volume.MountIdentity) volume.Sight {
		if s.Seen != volume.SeenHung && s.Seen != volume.SeenError || noted == nil {
			return s
		}
		entries, err := table()
		if err != nil {
			return s
		}
		for _, e := range entries {
			e.Identity.ID, e.Identity.Backing = noted.ID, noted.Backing
			if e.Path == path && !e.Covered && e.Identity == *noted {
				s.Identity = *noted
			}
		}

		return s
	}

	o.Staging = know(r.Node.StagingPath, o.Staging, r.Node.Mount)
	for alloc, c := range r.Claims {
		o.Targets[alloc] = know(c.Target, o.Targets[alloc], c.Mount)
	}

	return o
}
