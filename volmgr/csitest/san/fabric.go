package san

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// fabric contains the disks, the attachments and the sessions.
//
// A goroutine takes the locks in this order: admin, the gate of an attachment, mu. An operation of
// a session holds the gate for reading while it changes the disk.
type fabric struct {
	*journal
	dir   string
	ended <-chan struct{} // closed when the SAN ends

	admin sync.Mutex // held by each call that changes disks or attachments

	// disks changes under both locks, admin and mu. snapshots needs the lock admin.
	disks     map[string]*Disk
	snapshots map[string]*snapshot

	mu          sync.Mutex
	nodes       map[string]node
	attachments map[string]*attachment // key: id
	sessions    map[*session]bool
	cut         map[string]bool          // nodes that are cut off
	judged      map[string]bool          // pairs of attachments that judgeWrite has reported
	lies        map[string]int           // nodes that ControllerUnpublishVolume does not detach: how often, or alwaysLies
	slow        map[string]time.Duration // see SlowData
	permissive  bool
	generation  int64 // number of the last attachment
}

// Attachment is the connection of a volume to a node.
type Attachment struct {
	ID       string // volume, node and generation
	Volume   string
	Node     string
	Mode     string // CSI access mode, such as "SINGLE_NODE_WRITER"
	Writable bool
	Sessions int  // mounts of the attachment that the SAN serves
	CutOff   bool // the node is cut off, so all sessions answer EIO
}

// attachment is an Attachment of the SAN. Its operations hold the lock gate for reading. The fields
// readOnly and open change under both locks, gate and fabric.mu, so each of the two protects a reader.
type attachment struct {
	id, volume, node string
	mode             Mode
	made             bool // made by ControllerPublish, so ControllerUnpublish ends it

	gate     sync.RWMutex
	readOnly bool
	open     bool
}

func (a *attachment) writable() bool { return !a.readOnly }

func (a *attachment) holder() holder {
	return holder{node: a.node, mode: a.mode, writable: a.writable()}
}

// event returns an event about the attachment, which the call c caused.
func (a *attachment) event(c cause) Event {
	return Event{Kind: KindAttach, Node: a.node, Volume: a.volume, Attachment: a.id, Mode: a.mode.String(), Writable: a.writable(),
		Call: c.call, Method: c.method, Late: c.late}
}

// Session is a mount of a volume on a host, which the SAN serves. It lasts until the kernel of the
// host has ended the file system, even if its attachment ends before.
type Session struct {
	Volume     string
	Node       string
	Attachment string
	Path       string // where the driver mounted the file system; empty for a block volume
	Size       int64  // size that the node knows, in bytes; NodeExpandVolume updates it
	Detached   bool   // the attachment has ended, so the session answers EIO
}

// session is a Session of the SAN.
type session struct {
	*fabric
	attachment *attachment
	path       string
	block      bool
	size       int64    // protected by mu
	names      sync.Map // maps a node id of FUSE to the path of the file
}

func (s *session) event(kind Kind) Event {
	e := s.attachment.event(cause{})
	e.Kind, e.Name = kind, s.path
	return e
}

// Disk is a volume of the SAN.
type Disk struct {
	ID   string
	Name string // name in CreateVolume; empty for AddDisk
	Size int64  // bytes
	Dir  string // directory with the files of the volume, in the SAN's own file system

	// Image is the file with the data of a block volume. A volume has files and a block device,
	// and a test uses one of them.
	Image    string
	Topology map[string]string
}

// snapshot is a copy of the files of a disk.
type snapshot struct {
	dir  string
	info *csi.Snapshot
}

// node describes a node to the SAN.
type node struct {
	Limit    int64 // max_volumes_per_node, or 0
	Topology map[string]string
}

// attached returns the attachments that keep selects, sorted by id.
func (s *fabric) attached(keep func(*attachment) bool) []*attachment {
	s.mu.Lock()
	defer s.mu.Unlock()

	var all []*attachment
	for _, a := range s.attachments {
		if keep(a) {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *attachment) int { return cmp.Compare(a.id, b.id) })

	return all
}

// Attachments returns the attachments, sorted by volume and node.
func (s *fabric) Attachments() []Attachment {
	s.mu.Lock()
	defer s.mu.Unlock()

	var all []Attachment
	for _, a := range s.attachments {
		one := Attachment{ID: a.id, Volume: a.volume, Node: a.node, Mode: a.mode.String(), Writable: a.writable(), CutOff: !a.open}
		for session := range s.sessions {
			if session.attachment == a {
				one.Sessions++
			}
		}

		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Attachment) int { return cmp.Compare(a.ID, b.ID) })

	return all
}
