package systemd

import (
	"context"
	"fmt"

	"github.com/godbus/dbus/v5"

	"github.com/volagent/volagent/volmgr/proc"
)

// Settings contains settings from the unit files of a unit.
type Settings struct {
	Load      string   // LoadState: loaded, not-found, masked …
	FileState string   // UnitFileState: enabled, disabled, static …; empty if the unit has no file
	Before    []string // the units that start after this unit and stop before it
	After     []string
}

// Settings returns the settings of a unit. If the unit is not loaded, systemd loads it.
func (b *Bus) Settings(ctx context.Context, name string) (Settings, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return Settings{}, err
	}

	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()

	object, err := b.object(ctx, conn, "LoadUnit", name)
	if object == nil || err != nil {
		return Settings{}, err
	}

	var props map[string]dbus.Variant
	if err := object.CallWithContext(ctx, propsIface+".GetAll", 0, unitIface).Store(&props); err != nil {
		return Settings{}, fmt.Errorf("cannot ask systemd about unit %q: %w", name, err)
	}

	return Settings{
		Load: text(props["LoadState"]), FileState: text(props["UnitFileState"]), Before: texts(props["Before"]), After: texts(props["After"]),
	}, nil
}

func texts(v dbus.Variant) []string {
	list, _ := v.Value().([]string)
	return list
}

// OwnUnit returns the name of the service that runs this process, according to the cgroup of the
// process. The name is empty if no service runs this process.
func OwnUnit() string {
	if !InService() {
		return ""
	}

	groups, err := proc.OwnCgroups()
	if err != nil {
		return ""
	}

	return serviceOf(groups)
}
