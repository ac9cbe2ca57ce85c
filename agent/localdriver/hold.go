package localdriver

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/localdriver/store"
)

// takeOver examines the loop devices that an earlier driver attached. It holds those of volumes
// with block access, and logs a warning about devices that no volume can use. It detaches none,
// because the data of a deleted image is lost when its device is detached.
func (d *driver) takeOver() error {
	look, err := lookAround()
	if err != nil {
		return err
	}

	bound, err := boundLoopNodes()
	if err != nil {
		return err
	}

	for id, names := range look.loops {
		if _, err := d.store.Get(id); store.ValidID(id) && errors.Is(err, store.ErrNoVolume) && d.attachedHere(names) {
			d.log.Warn("a loop device has the image of a volume that does not exist; detach it with losetup -d, unless its data is still needed", "volume_id", id, "devices", names)
		}
	}

	for _, v := range d.store.List() {
		if v.Type != store.TypeImage {
			continue
		}

		img, err := imageAt(d.store.DataPath(v))
		if err != nil {
			continue // the volume's health reports it
		}

		for _, name := range look.loops[v.ID] {
			l, err := inspectLoop(name, img)
			if err != nil || l == nil {
				continue
			}

			if l.stale {
				d.log.Warn("the image of a volume was deleted or replaced while it is attached; copy the data away before the volume is detached", "volume_id", v.ID, "device", l.path())
			}

			// A device that is marked for detaching will disappear, unless its node is still bound.
			if !v.Block || l.autoclear && !bound[l.number()] {
				continue
			}

			if err := d.holdDevice(l); err != nil {
				d.log.Warn("a block volume's device can be detached while it is in use", "volume_id", v.ID, "device", l.path(), "error", err)
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

// holdDevice keeps a device open and attached until it is dropped.
func (d *driver) holdDevice(l *loopDevice) error {
	if err := d.held.add(*l); err != nil {
		return err
	}
	return d.held.keep(l)
}
