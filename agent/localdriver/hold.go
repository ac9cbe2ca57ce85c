package localdriver

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// takeOver examines the loop devices that an earlier driver process attached. It keeps the devices
// of block volumes open. It logs a warning about each device that no volume can use, but detaches
// none of them: detaching the device of a deleted image would destroy the data.
func (d *driver) takeOver() error {
	look, err := loopdev.LookAround()
	if err != nil {
		return err
	}

	bound, err := loopdev.BoundLoopNodes()
	if err != nil {
		return err
	}

	for id, names := range look.Loops {
		if _, err := d.store.Get(id); store.ValidID(id) && errors.Is(err, store.ErrNoVolume) && d.attachedHere(names) {
			d.log.Warn("a loop device has the image of a volume that does not exist; detach it with losetup -d, unless its data is still needed", "volume_id", id, "devices", names)
		}
	}

	for _, v := range d.store.List() {
		if v.Type != store.TypeImage {
			continue
		}

		img, err := loopdev.ImageAt(d.store.DataPath(v))
		if err != nil {
			continue // the volume's health reports this error
		}

		for _, name := range look.Loops[v.ID] {
			l, err := loopdev.InspectLoop(name, img)
			if err != nil || l == nil {
				continue
			}

			if l.Stale {
				d.log.Warn("the image of a volume was deleted or replaced while it is attached; copy the data away before the volume is detached", "volume_id", v.ID, "device", l.Path())
			}

			// A device that is marked for detaching will disappear, unless its node is still
			// bind-mounted.
			if !v.Block || l.Autoclear && !bound[l.Number()] {
				continue
			}

			if err := d.holdDevice(l); err != nil {
				d.log.Warn("a block volume's device can be detached while it is in use", "volume_id", v.ID, "device", l.Path(), "error", err)
			}
		}
	}

	return nil
}

// attachedHere reports whether one of the devices has a backing file in the driver's own state
// directory.
func (d *driver) attachedHere(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		raw, err := os.ReadFile("/sys/block/" + name + "/loop/backing_file")
		return err == nil && strings.HasPrefix(string(raw), d.store.Root+"/")
	})
}

// holdDevice opens a device and keeps it open, so that the device stays attached until the driver
// drops it.
func (d *driver) holdDevice(l *loopdev.LoopDevice) error {
	if err := d.held.Add(*l); err != nil {
		return err
	}
	return d.held.Keep(l)
}
