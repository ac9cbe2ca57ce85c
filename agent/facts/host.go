package facts

import (
	"context"

	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// hostFacts implements the doctor's access to the host.
type hostFacts struct {
	host  *mount.Host
	steps *volmgr.Manager
}

// Mounts returns the mount table.
func (h hostFacts) Mounts() ([]doctor.Mounted, error) {
	entries, err := h.host.Under("/")
	all := make([]doctor.Mounted, 0, len(entries))
	for _, e := range entries {
		all = append(all, doctor.Mounted{
			Path: e.Path, Device: e.Identity.Device, Root: e.Identity.Root, FSType: e.Identity.FSType, Source: e.Source, Canary: mount.IsCanary(e),
		})
	}

	return all, err
}

// someNames is the maximum number of directory entries to read. It is one more than the doctor
// shows, so that the doctor knows whether there are more entries.
const someNames = 4

// Contents examines a path on which nothing is mounted.
func (h hostFacts) Contents(ctx context.Context, path string) (doctor.Contents, error) {
	c, err := h.host.Contents(ctx, path, someNames, false)
	return contents(c), err
}

func contents(c mount.Contents) doctor.Contents {
	out := doctor.Contents{Mounted: c.Mounted, Kind: c.Kind, Empty: c.Empty(), Holds: fstab.Some(c.Names)}
	if c.Size > 0 {
		out.Holds = volume.Size(c.Size)
	}
	return out
}

// Block asks the kernel for the properties of a device.
func (h hostFacts) Block(dev volume.Device) (doctor.Block, bool) {
	return doctor.Block(h.host.Block(dev.Number)), !h.host.Replaced(dev)
}

// Loops returns the loop devices that have a backing file.
func (h hostFacts) Loops() []doctor.Loop {
	var all []doctor.Loop
	for dev, b := range h.host.Loops() {
		all = append(all, doctor.Loop{Device: dev, Block: doctor.Block(b)})
	}
	return all
}

// Leftovers returns the files and directories below the mount directories, except the paths in
// known.
func (h hostFacts) Leftovers(ctx context.Context, known map[string]bool) ([]doctor.Leftover, error) {
	found, err := h.steps.Leftovers(ctx, known)
	all := make([]doctor.Leftover, 0, len(found))
	for _, l := range found {
		all = append(all, doctor.Leftover{Path: l.Path, Contents: contents(l.Contents), Err: l.Err})
	}
	return all, err
}

func (h hostFacts) RemoveLeftover(path string) error { return h.steps.RemoveLeftover(path) }
