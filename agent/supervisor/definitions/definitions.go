// Package definitions knows which plugins the host has: those of the plugin files, those that were
// registered at run time, and the bundled driver. It notices changes, and decides which definition
// each part of each plugin has.
package definitions

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/volume"
)

// Registry keeps the definitions that were registered at run time.
type Registry interface {
	// LoadRegistered returns all of the definitions.
	LoadRegistered() ([]volume.PluginDefinition, error)
	// Register stores a definition, and replaces the one with the same id, type and instance.
	// Either the definition is on disk when Register returns, or nothing has changed.
	Register(ctx context.Context, def volume.PluginDefinition) error
	// Deregister removes definitions, with the same guarantee.
	Deregister(ctx context.Context, defs []volume.PluginDefinition) error
}

// Parts are the parts that follow the definitions.
type Parts interface {
	// Load reads the records of the parts. It is called before the first definition is read.
	Load() error
	// Held returns, by slot, the definitions that are in use or were in use when the agent started.
	Held() map[string]*volume.PluginDefinition
	// Follow makes the parts follow the definitions, by slot.
	Follow(wants map[string]Want)
}

// Options configures Definitions.
type Options struct {
	Dir      string // holds *.yaml; it need not exist
	Rules    Rules
	Registry Registry // nil: plugins cannot be registered at run time
	Parts    Parts
	Logger   hclog.Logger
}

// Definitions holds the definitions of all plugins.
type Definitions struct {
	opts Options
	look chan struct{} // holds one token: resolve the path of the plugin files again and watch it

	mu         sync.Mutex // held while definitions are read and followed
	loaded     bool
	read       []Found                    // the plugin files as they were last read
	registered []*volume.PluginDefinition // the definitions that were registered at run time
}

// New makes definitions and reads nothing.
func New(opts Options) *Definitions {
	return &Definitions{opts: opts, look: make(chan struct{}, 1)}
}

// Load reads the records of the parts and all definitions. Further calls do nothing.
func (d *Definitions) Load() error {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.loaded {
		return nil
	}
	return d.reread()
}

// Loaded reports whether the records and registrations were read.
func (d *Definitions) Loaded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.loaded
}

// Reload reads the plugin files again. It also looks again where their directory is.
func (d *Definitions) Reload() error {
	err := d.readAgain()
	select {
	case d.look <- struct{}{}:
	default:
	}
	return err
}

// Restored loads the definitions that were put into the registry without Register, because a backup
// was restored.
func (d *Definitions) Restored() error {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.loaded {
		if err := d.loadRegistered(); err != nil {
			return err
		}
	}

	return d.reread()
}

func (d *Definitions) readAgain() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reread()
}

// reread reads the plugin files, and before the first time everything else. The caller holds d.mu.
func (d *Definitions) reread() error {
	if !d.loaded {
		if err := d.opts.Parts.Load(); err != nil {
			return err
		}
		if err := d.loadRegistered(); err != nil {
			return err
		}

		d.loaded = true
	}

	files, err := readFiles(d.opts.Dir)
	if err != nil {
		return err
	}

	d.follow(files)
	return nil
}

// loadRegistered loads the definitions that earlier agents registered. The caller holds d.mu.
func (d *Definitions) loadRegistered() error {
	if d.opts.Registry == nil {
		return nil
	}

	defs, err := d.opts.Registry.LoadRegistered()
	if err != nil {
		return fmt.Errorf("cannot load the registered plugins: %w", err)
	}

	d.registered = nil
	for i := range defs {
		d.registered = append(d.registered, &defs[i])
	}

	return nil
}

// follow makes the parts follow the files and the registrations. The caller holds d.mu.
func (d *Definitions) follow(files []Found) {
	d.read = files
	d.opts.Parts.Follow(d.opts.Rules.wants(sources(d.registered, files), d.opts.Parts.Held()))
}

// stale reports whether the plugin files differ from those that were last read.
func (d *Definitions) stale() bool {
	d.mu.Lock()
	defer d.mu.Unlock()

	files, err := readFiles(d.opts.Dir)
	return err == nil && !slices.EqualFunc(files, d.read, Found.equal)
}
