package san

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// serve begins a session on the FUSE device of a request.
func (s *SAN) serve(r request, dev *os.File) answer {
	if dev == nil {
		return failed(status.Error(codes.InvalidArgument, "the request has no FUSE device"))
	}

	size, err := s.start(r, dev)
	if err != nil {
		return failed(errors.Join(err, dev.Close()))
	}

	return answer{Size: size}
}

func (s *SAN) start(r request, dev *os.File) (size int64, err error) {
	s.admin.Lock()
	defer s.admin.Unlock()

	if s.isCut(r.Node) {
		return 0, status.Errorf(codes.Unavailable, "node %q is cut off", r.Node)
	}

	a, err := s.serving(r)
	if err != nil {
		return 0, err
	}

	d := s.disks[a.volume]
	dir := d.Dir
	if r.Block {
		dir = filepath.Dir(d.Image)
	}

	one := &session{fabric: s.fabric, attachment: a, path: r.Path, block: r.Block, size: d.Size}
	server, err := one.open(dir, dev)
	if err != nil {
		s.leave(a)
		return 0, status.Errorf(codes.Internal, "cannot serve volume %q: %v", a.volume, err)
	}

	s.mu.Lock()
	s.sessions[one] = true
	s.add(one.event(KindMount))
	s.mu.Unlock()
	go one.run(server)

	return d.Size, nil
}

func (s *fabric) isCut(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut[node]
}

// serving returns the attachment of a new session. The caller holds the lock admin.
func (s *SAN) serving(r request) (*attachment, error) {
	if r.Attachment == "" {
		return s.attach(wanted{volume: r.Volume, node: r.Node, mode: r.Mode, readOnly: r.ReadOnly}, cause{})
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.attachments[r.Attachment]
	if a == nil || a.volume != r.Volume || a.node != r.Node {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is not attached to %q as %q", r.Volume, r.Node, r.Attachment)
	}

	return a, nil
}

// open starts to serve a directory on a FUSE device.
func (s *session) open(dir string, dev *os.File) (*fuse.Server, error) {
	root, err := fs.NewLoopbackRoot(dir)
	if err != nil {
		return nil, err
	}

	// Without caching of names and attributes, the kernel asks the SAN at each use. A node therefore
	// sees the changes of other nodes, and gets EIO after the gate is closed.
	never := time.Duration(0)
	files := fs.NewNodeFS(root, &fs.Options{EntryTimeout: &never, AttrTimeout: &never, NegativeTimeout: &never})

	// The server takes over the descriptor and closes it at the end of the session.
	fd, err := dup(dev)
	if err != nil {
		return nil, err
	}

	server, err := fuse.NewServer(&gate{RawFileSystem: files, session: s}, fmt.Sprintf("/dev/fd/%d", fd), &fuse.MountOptions{
		DisableReadDirPlus: true, DisableSplice: true,
		// Passthrough would bypass the gate. Without CAP_ABORT_ERROR, each end of a session looks like
		// an unmount to the server, which then ends silently.
		DisabledCapabilities: fuse.CAP_PASSTHROUGH | fuse.CAP_ABORT_ERROR,
	})
	if err != nil {
		return nil, err
	}

	return server, dev.Close()
}

// run serves the session until the kernel ends it.
func (s *session) run(server *fuse.Server) {
	server.Serve()

	s.admin.Lock()
	defer s.admin.Unlock()
	s.mu.Lock()
	delete(s.sessions, s)
	s.add(s.event(KindUnmount))
	s.mu.Unlock()
	s.leave(s.attachment)
}

// leave ends an attachment without sessions, unless ControllerPublish made it. The caller holds the
// lock admin.
func (s *fabric) leave(a *attachment) {
	if a.made {
		return
	}

	s.mu.Lock()
	used := s.attachments[a.id] == nil
	for one := range s.sessions {
		used = used || one.attachment == a
	}
	s.mu.Unlock()

	if !used {
		s.detach(a.volume, a.node, cause{})
	}
}

// release ends the attachment of a driver without ControllerPublish, after the driver has unmounted
// the last path. An empty path stands for all paths. Mounts that remain on the host answer EIO.
func (s *SAN) release(r request) answer {
	s.admin.Lock()
	defer s.admin.Unlock()

	s.mu.Lock()
	a := s.find(r.Volume, r.Node)
	others := 0
	for one := range s.sessions {
		if one.attachment == a && r.Path != "" && one.path != r.Path {
			others++
		}
	}
	s.mu.Unlock()

	if a != nil && !a.made && others == 0 {
		s.detach(a.volume, a.node, cause{})
	}

	return answer{}
}

// writer makes the attachment of a driver without ControllerPublish writable.
func (s *SAN) writer(r request) answer {
	s.admin.Lock()
	defer s.admin.Unlock()

	s.mu.Lock()
	a := s.find(r.Volume, r.Node)
	s.mu.Unlock()
	if a == nil {
		return failed(status.Errorf(codes.FailedPrecondition, "volume %q is not attached to %q", r.Volume, r.Node))
	}
	if err := s.permitWrites(a); err != nil {
		return failed(err)
	}

	return answer{}
}

// resize tells the sessions of a volume on a node the size of the disk.
func (s *SAN) resize(r request) answer {
	s.admin.Lock()
	defer s.admin.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()

	d := s.disks[r.Volume]
	if d == nil {
		return failed(status.Errorf(codes.NotFound, "volume %q does not exist", r.Volume))
	}
	for one := range s.sessions {
		if one.attachment.volume == r.Volume && one.attachment.node == r.Node {
			one.size = d.Size
		}
	}

	return answer{Size: d.Size}
}

// Sessions returns the sessions, sorted by attachment and path.
func (s *SAN) Sessions() []Session {
	s.mu.Lock()
	defer s.mu.Unlock()

	var all []Session
	for one := range s.sessions {
		a := one.attachment
		all = append(all, Session{Volume: a.volume, Node: a.node, Attachment: a.id, Path: one.path, Size: one.size,
			Detached: s.attachments[a.id] == nil})
	}
	slices.SortFunc(all, func(a, b Session) int {
		return cmp.Or(cmp.Compare(a.Attachment, b.Attachment), cmp.Compare(a.Path, b.Path))
	})

	return all
}
