// Package definitions collects the definitions of all plugins on the host: from the plugin files,
// from registrations at run time, and from the bundled driver. It notices changes, and decides
// which definition each part of each plugin has.
package definitions

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/plugin"
)

// Registry stores the definitions that were registered at run time.
type Registry interface {
	// LoadRegistered returns all registered definitions.
	LoadRegistered() ([]plugin.Definition, error)
	// Register stores a definition. It replaces a definition with the same id, type and instance.
	// When Register returns nil, the definition is on disk. If it returns an error, nothing has
	// changed.
	Register(ctx context.Context, def plugin.Definition) error
	// Deregister deletes definitions. When it returns nil, the deletion is on disk. If it returns
	// an error, nothing has changed.
	Deregister(ctx context.Context, defs []plugin.Definition) error
}

// Parts is the set of all parts of plugins. This package tells the parts which definitions they
// must have.
type Parts interface {
	// Load reads the records of the parts. It is called before any definition is read.
	Load() error
	// Held returns the definitions that are in use or were in use when the agent started, by slot.
	// A slot is the key of a part.
	Held() map[string]*plugin.Definition
	// Follow adds, changes and removes parts so that they match the definitions in wants, which are
	// given by slot.
	Follow(wants map[string]Want)
}

// Options configures Definitions.
type Options struct {
	Dir      string // directory of the plugin files, *.yaml; it need not exist
	Rules    Rules
	Registry Registry // if nil, plugins cannot be registered at run time
	Parts    Parts
	Logger   hclog.Logger
}

// Definitions collects the definitions of all plugins.
type Definitions struct {
	opts Options
	look chan struct{} // a value tells Watch to find the directory of the plugin files again

	disabled atomic.Pointer[[]Found] // the plugin files with enabled: false, as they were last read

	mu         sync.Mutex // held while definitions are read and passed to the parts
	loaded     bool
	read       []Found              // the plugin files as they were last read
	registered []*plugin.Definition // the definitions that were registered at run time
}

// New returns a Definitions. It reads nothing yet.
func New(opts Options) *Definitions {
	return &Definitions{opts: opts, look: make(chan struct{}, 1)}
}

// Load reads the records of the parts and all definitions. Only the first successful call has an
// effect.
func (d *Definitions) Load() error {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.loaded {
		return nil
	}
	return d.reread()
}

// Loaded reports whether Load has already read the records and the registrations.
func (d *Definitions) Loaded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.loaded
}

// Reload reads the plugin files again. If the path of their directory now leads elsewhere, Reload
// follows it.
func (d *Definitions) Reload() error {
	err := d.readAgain()
	select {
	case d.look <- struct{}{}:
	default:
	}
	return err
}

// Restored reads the registry again. It is called after a backup was restored, because a restore
// writes definitions to the registry without a call of Register.
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

// reread reads the plugin files. The first call also loads the records and the registrations. The
// caller holds d.mu.
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

// follow makes the parts follow the plugin files and the registrations. The caller holds d.mu.
func (d *Definitions) follow(files []Found) {
	d.read = files
	off := disabledFiles(files)
	d.disabled.Store(&off)
	d.opts.Parts.Follow(d.opts.Rules.wants(sources(d.registered, files), d.opts.Parts.Held()))
}

// Disabled returns the plugin files that have enabled: false, sorted by name. It does not wait for a
// reading of the files.
func (d *Definitions) Disabled() []Found {
	if off := d.disabled.Load(); off != nil {
		return *off
	}
	return nil
}

// stale reports whether the plugin files have changed since they were last read.
func (d *Definitions) stale() bool {
	d.mu.Lock()
	defer d.mu.Unlock()

	files, err := readFiles(d.opts.Dir)
	return err == nil && !slices.EqualFunc(files, d.read, Found.equal)
}
