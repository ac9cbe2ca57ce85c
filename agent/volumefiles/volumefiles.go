// Package volumefiles registers the volumes that the files in a directory describe. With this
// directory, an operator can configure volumes without commands.
package volumefiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/service"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/suggest"
	"github.com/volagent/volagent/volmgr/untrusted"
	"github.com/volagent/volagent/volmgr/volume"
)

// Options configures a Files. All fields must be set.
type Options struct {
	// Dir is the directory that contains the volume files.
	Dir string
	// Register registers a volume.
	Register func(ctx context.Context, v volume.Volume, dry bool) (volume.Record, volume.Change, error)
	// View returns the state of a plugin.
	View func(pluginID string) plugin.View
	Log  hclog.Logger
}

// Files registers the volumes in the files of a directory when the agent starts and after each
// reload. It does not create storage. When a file is removed, its volume stays registered.
type Files struct {
	o    Options
	wake chan struct{}

	mu      sync.Mutex
	stale   bool // whether Run must read the files again
	read    bool
	found   []*filed      // the volumes of all files, in the order of the files
	changed chan struct{} // closed when the state of a volume changes
}

// filed is a volume in a file, or a mistake in a file.
type filed struct {
	file string
	line int // 0 for a mistake that concerns the whole file
	spec volume.Volume
	done bool   // whether the volume is registered with the properties in the file
	bad  bool   // whether the error remains until an operator changes the file
	why  error  // the reason why the volume is not registered
	said string // the last logged error
}

// filesAtOnce limits the number of simultaneous registrations. fileWithin limits the duration of a
// registration, which may call a plugin.
const (
	filesAtOnce = 32
	fileWithin  = time.Minute
)

// New returns a Files that reads the directory only when Run is called.
func New(o Options) *Files {
	return &Files{o: o, wake: make(chan struct{}, 1), stale: true, changed: make(chan struct{})}
}

// Run registers the volumes in the directory until ctx ends.
func (f *Files) Run(ctx context.Context) {
	for {
		f.load()
		f.pass(ctx)
		select {
		case <-f.wake:
		case <-ctx.Done():
			return
		}
	}
}

// Reread makes Run read the files again.
func (f *Files) Reread() {
	f.mu.Lock()
	f.stale = true
	f.mu.Unlock()
	f.Retry()
}

// Retry makes Run retry the volumes that are not registered yet.
func (f *Files) Retry() {
	select {
	case f.wake <- struct{}{}:
	default: // Run has not handled the previous request yet
	}
}

// load reads the directory if it must be read again. It resets the state of all volumes, except the
// last logged error.
func (f *Files) load() {
	f.mu.Lock()
	stale := f.stale
	f.stale = false
	f.mu.Unlock()
	if !stale {
		return
	}

	found := readDir(f.o.Dir)
	f.mu.Lock()
	defer f.mu.Unlock()

	was := map[string]*filed{}
	for _, v := range f.found {
		was[v.key()] = v
	}
	for _, v := range found {
		if old, ok := was[v.key()]; ok {
			v.said = old.said
		}
		delete(was, v.key())
	}

	for _, v := range was {
		if v.spec.ID != "" && v.done && !slices.ContainsFunc(found, func(o *filed) bool { return o.spec.ID == v.spec.ID }) {
			f.o.Log.Info("the file of a volume is gone; the volume stays registered", "volume", v.spec.ID, "file", v.file,
				"remedy", suggest.Command("volctl volume deregister %s", v.spec.ID))
		}
	}

	f.found, f.read = found, true
	f.tell()
}

func (v *filed) key() string { return v.place() + "\x00" + v.spec.ID }

// place returns the file and line of the volume, for messages.
func (v *filed) place() string {
	if v.line == 0 {
		return v.file
	}
	return fmt.Sprintf("%s:%d", v.file, v.line)
}

// tell wakes the callers of Await. The caller of tell holds mu.
func (f *Files) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// pass registers the volumes that are not registered yet.
func (f *Files) pass(ctx context.Context) {
	f.mu.Lock()
	due := slices.DeleteFunc(slices.Clone(f.found), func(v *filed) bool { return v.done || v.bad })
	bad := slices.DeleteFunc(slices.Clone(f.found), func(v *filed) bool { return !v.bad })
	f.mu.Unlock()
	for _, v := range bad {
		f.settle(v, v.why)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, filesAtOnce)
	for _, v := range due {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f.settle(v, f.one(ctx, v))
		})
	}

	wg.Wait()
}

// one registers a volume. If the plugin has not completed its first start, one does not wait, but
// returns an error.
func (f *Files) one(ctx context.Context, v *filed) error {
	if p := f.o.View(v.spec.PluginID); p.Known && p.Info.Driver == "" && !p.Ready {
		return volume.Errorf(volume.ErrPluginUnavailable, "volume %q waits for plugin %q, which is %s", v.spec.ID, v.spec.PluginID, p.State).
			WithRemedy(p.Remedy(v.spec.PluginID))
	}

	ctx, cancel := context.WithTimeout(ctx, fileWithin)
	defer cancel()

	_, _, err := f.o.Register(ctx, v.spec, false)
	return err
}

// settle stores the result of a registration, and logs the result if it differs from the last
// logged result.
func (f *Files) settle(v *filed, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()

	v.done, v.why = err == nil, err
	words := ""
	if err != nil {
		words = err.Error()
	}
	if v.said != words && words != "" {
		f.o.Log.Warn("cannot apply a volume file", "at", v.place(), "error", words)
	}
	if v.said != "" && words == "" {
		f.o.Log.Info("applied a volume file", "at", v.place(), "volume", v.spec.ID)
	}
	v.said = words
	f.tell()
}

// Problems returns the mistakes that an operator must correct. A volume that waits for its plugin
// to start is not a problem.
func (f *Files) Problems() (all []api.Problem) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, v := range f.found {
		starting := errors.Is(v.why, volume.ErrPluginUnavailable) && f.o.View(v.spec.PluginID).State == api.PluginStarting
		if v.why == nil || starting {
			continue
		}

		p := api.Problem{Subject: v.file, Message: v.why.Error(), Command: "fix it, then: systemctl reload volagent"}
		if v.line > 0 {
			p.Message = fmt.Sprintf("line %d: %s", v.line, p.Message)
		}
		var e *volume.Error
		if errors.As(v.why, &e) && suggest.Hint(e.Remedy, e.Hint) != "" && !v.bad {
			p.Command = suggest.Hint(e.Remedy, e.Hint)
		}
		all = append(all, p)
	}

	return all
}

// Await waits until the volume with the given id is registered, if any file contains it. Await
// returns an error if the registration fails, and nil if no file contains the volume.
func (f *Files) Await(ctx context.Context, id string) error {
	for {
		f.mu.Lock()
		changed, i := f.changed, slices.IndexFunc(f.found, func(v *filed) bool { return v.spec.ID == id && !v.bad })
		var v filed
		if i >= 0 {
			v = *f.found[i]
		}
		read := f.read
		f.mu.Unlock()
		switch {
		case read && (i < 0 || v.done):
			return nil
		case v.why != nil && (!errors.Is(v.why, volume.ErrPluginUnavailable) || f.o.View(v.spec.PluginID).Final):
			return fmt.Errorf("%s: %w", v.place(), v.why)
		}

		select {
		case <-changed:
		case <-ctx.Done():
			if v.why != nil {
				return fmt.Errorf("%s: %w", v.place(), v.why)
			}
			return volume.Errorf(volume.ErrTimeout, "volume %q is not registered yet: the agent is still reading the volume files", id).WithHint("volctl volume list")
		}
	}
}

// readDir reads the volumes of all files in a directory, sorted by file name. A missing directory
// contains no volumes.
func readDir(dir string) (all []*filed) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []*filed{{file: dir, bad: true, why: fmt.Errorf("cannot read the directory of volume files: %w", err)}}
	}

	first := map[string]string{}
	for _, e := range entries {
		if !isVolumeFile(e.Name()) {
			continue
		}

		path := filepath.Join(dir, e.Name())
		for _, v := range readFile(path) {
			v.second(first)
			all = append(all, v)
		}
	}

	return all
}

// second marks a volume as bad if an earlier file contains the same id or the same storage. Volumes
// are registered in parallel, so without this check the result would depend on chance.
func (v *filed) second(first map[string]string) {
	if v.bad {
		return
	}

	id, storage := "id\x00"+v.spec.ID, v.spec.PluginID+"\x00"+v.spec.ExternalID
	if other, twice := first[id]; twice {
		v.bad, v.why = true, fmt.Errorf("volume %q is already in %s", v.spec.ID, other)
		return
	}

	first[id] = v.place()
	if other, twice := first[storage]; twice && v.spec.ExternalID != "" {
		v.bad, v.why = true, fmt.Errorf("external_id %q of plugin %q is already in %s; one storage volume has one id", v.spec.ExternalID, v.spec.PluginID, other)
		return
	}

	first[storage] = v.place()
}

// isVolumeFile reports whether name is the name of a volume file. It excludes the backup and
// temporary files of editors.
func isVolumeFile(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".json", ".hcl"}, filepath.Ext(name))
}

func readFile(path string) []*filed {
	text, err := untrusted.ReadFile(path, spec.MaxFileSize)
	if err != nil {
		return []*filed{{file: path, bad: true, why: err}}
	}

	docs, err := spec.Read(path, text)
	var mistakes spec.Errors
	if errors.As(err, &mistakes) {
		all := make([]*filed, len(mistakes))
		for i, m := range mistakes {
			all[i] = &filed{file: path, line: m.Line, bad: true, why: errors.New(m.Message)}
		}
		return all
	}
	if err != nil {
		return []*filed{{file: path, bad: true, why: err}}
	}

	var all []*filed
	for _, d := range docs {
		v := &filed{file: path, line: d.Line, spec: service.Volume(d.Spec)}
		if d.From != spec.Own {
			v.bad, v.why = true, fmt.Errorf("volume %q is in the format of %s; register it with volctl volume register, then export it to this file with volctl volume export", d.Spec.ID, cmp.Or(string(d.From), "others"))
		}
		all = append(all, v)
	}

	return all
}
