package systemd

import (
	"context"
	"fmt"

	"github.com/godbus/dbus/v5"
	"github.com/volagent/volagent/volmgr/proc"
)

// Settings holds the settings from a unit's files.
type Settings struct {
	Load      string   // LoadState: loaded, not-found, masked …
	FileState string   // UnitFileState: enabled, disabled, static …; empty if the unit has no file
	Before    []string // units that start after it and stop before it
	After     []string
}

// Settings returns the settings of a unit. It loads the unit if it is not loaded.
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

// OwnUnit returns the service that contains this process, according to its cgroup. It is empty if
// there is none.
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
