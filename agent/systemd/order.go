package systemd

import (
	"context"
	"fmt"

	"github.com/godbus/dbus/v5"
	"github.com/volagent/volagent/volmgr/proc"
)

// Settings are what a unit's files say of it.
type Settings struct {
	Load      string   // LoadState: loaded, not-found, masked …
	FileState string   // UnitFileState: enabled, disabled, static …; empty where no file is of that name
	Before    []string // units that are started after it, and stopped before it
	After     []string
}

// Settings asks for a unit's settings; it is loaded for that if it is not.
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

// OwnUnit is the service that this process is of, as its cgroup says; empty if it is
// of none.
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
