package agent

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
	"github.com/volagent/volagent/agent/apiserver"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/untrusted"
	"github.com/volagent/volagent/volmgr/volume"
)

// volumeFiles registers the volumes of the files in a directory, when the agent starts
// and when it is told to read them again. It creates nothing, and what has no file any
// more stays as it is.
type volumeFiles struct {
	dir      string
	register func(ctx context.Context, spec volume.Volume, dry bool) (volume.Record, volume.Change, error)
	view     func(pluginID string) volume.PluginView
	log      hclog.Logger
	wake     chan struct{}

	mu      sync.Mutex
	stale   bool // they are to be read again
	read    bool
	found   []*filed      // in the order of their files
	changed chan struct{} // closed at the next change
}

// filed is one volume of a file, or a file that makes no sense.
type filed struct {
	file string
	line int // 0 for a file as a whole
	spec volume.Volume
	done bool   // it is registered as the file says
	bad  bool   // the file has to be changed first
	why  error  // why it is not
	said string // the last of that which was logged
}

// filesAtOnce are how many volumes of files are registered side by side, and fileWithin
// bounds each: a plugin may be asked.
const (
	filesAtOnce = 32
	fileWithin  = time.Minute
)

func newVolumeFiles(dir string, register func(context.Context, volume.Volume, bool) (volume.Record, volume.Change, error),
	view func(string) volume.PluginView, log hclog.Logger,
) *volumeFiles {
	return &volumeFiles{dir: dir, register: register, view: view, log: log.Named("files"), wake: make(chan struct{}, 1), stale: true, changed: make(chan struct{})}
}

// run registers until ctx ends.
func (f *volumeFiles) run(ctx context.Context) {
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

// again has the files read again.
func (f *volumeFiles) again() {
	f.mu.Lock()
	f.stale = true
	f.mu.Unlock()
	f.retry()
}

// retry has what is not registered tried again.
func (f *volumeFiles) retry() {
	select {
	case f.wake <- struct{}{}:
	default: // a pass is due anyway
	}
}

// load reads the directory, if it is to be read. What a volume was before is forgotten,
// but for what was logged of it.
func (f *volumeFiles) load() {
	f.mu.Lock()
	stale := f.stale
	f.stale = false
	f.mu.Unlock()
	if !stale {
		return
	}
	found := readVolumeFiles(f.dir)
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
			f.log.Info("the file of a volume is gone; the volume stays registered", "volume", v.spec.ID, "file", v.file,
				"remedy", volume.Command("volctl volume deregister %s", v.spec.ID))
		}
	}
	f.found, f.read = found, true
	f.tell()
}

func (v *filed) key() string { return v.place() + "\x00" + v.spec.ID }

// place is where a person finds it.
func (v *filed) place() string {
	if v.line == 0 {
		return v.file
	}
	return fmt.Sprintf("%s:%d", v.file, v.line)
}

// tell wakes who waits for a volume; mu is held.
func (f *volumeFiles) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// pass registers what is not registered yet.
func (f *volumeFiles) pass(ctx context.Context) {
	f.mu.Lock()
	var due []*filed
	for _, v := range f.found {
		if !v.done && !v.bad {
			due = append(due, v)
		}
	}
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

// one registers a volume, unless that would have to wait for its plugin.
func (f *volumeFiles) one(ctx context.Context, v *filed) error {
	if p := f.view(v.spec.PluginID); p.Known && p.Info.Driver == "" && !p.Ready {
		return volume.Errorf(volume.ErrPluginUnavailable, "volume %q waits for plugin %q, which is %s", v.spec.ID, v.spec.PluginID, p.State).
			WithHint("%s", p.Remedy(v.spec.PluginID))
	}
	ctx, cancel := context.WithTimeout(ctx, fileWithin)
	defer cancel()
	_, _, err := f.register(ctx, v.spec, false)
	return err
}

// settle notes how that went, and logs what is news.
func (f *volumeFiles) settle(v *filed, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v.done, v.why = err == nil, err
	words := ""
	if err != nil {
		words = err.Error()
	}
	if v.said != words && words != "" {
		f.log.Warn("a volume file is not in force", "at", v.place(), "error", words)
	}
	if v.said != "" && words == "" {
		f.log.Info("a volume file is in force now", "at", v.place(), "volume", v.spec.ID)
	}
	v.said = words
	f.tell()
}

// problems are the files that a person should look at. One that waits for a plugin which
// is just starting is none.
func (f *volumeFiles) problems() (all []api.Problem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.found {
		starting := errors.Is(v.why, volume.ErrPluginUnavailable) && f.view(v.spec.PluginID).State == api.PluginStarting
		if v.why == nil || starting {
			continue
		}
		p := api.Problem{Subject: v.file, Message: v.why.Error(), Command: "mend it, then: systemctl reload volagent"}
		if v.line > 0 {
			p.Message = fmt.Sprintf("line %d: %s", v.line, p.Message)
		}
		var e *volume.Error
		if errors.As(v.why, &e) && e.Hint != "" && !v.bad {
			p.Command = e.Hint
		}
		all = append(all, p)
	}
	return all
}

// coming waits until a volume that stands in a file is registered, and says why it is
// not. It is nil for one of which no file tells.
func (f *volumeFiles) coming(ctx context.Context, id string) error {
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
		case v.why != nil && (!errors.Is(v.why, volume.ErrPluginUnavailable) || f.view(v.spec.PluginID).Final):
			return fmt.Errorf("%s: %w", v.place(), v.why)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if v.why != nil {
				return fmt.Errorf("%s: %w", v.place(), v.why)
			}
			return volume.Errorf(volume.ErrTimeout, "volume %q is not registered yet: the volume files are being read", id).WithHint("volctl volume list")
		}
	}
}

// readVolumeFiles reads the volumes of a directory, in the order of its files' names. A
// directory that is not there has none.
func readVolumeFiles(dir string) (all []*filed) {
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
		for _, v := range readVolumeFile(path) {
			v.second(first)
			all = append(all, v)
		}
	}
	return all
}

// second finds out whether the volume, or its storage, stands in a file before. They are
// registered side by side, so that otherwise either might be.
func (v *filed) second(first map[string]string) {
	if v.bad {
		return
	}
	id, storage := "id\x00"+v.spec.ID, v.spec.PluginID+"\x00"+v.spec.ExternalID
	if other, twice := first[id]; twice {
		v.bad, v.why = true, fmt.Errorf("volume %q stands in %s already", v.spec.ID, other)
		return
	}
	first[id] = v.place()
	if other, twice := first[storage]; twice && v.spec.ExternalID != "" {
		v.bad, v.why = true, fmt.Errorf("external_id %q of plugin %q stands in %s already; one storage volume has one id", v.spec.ExternalID, v.spec.PluginID, other)
		return
	}
	first[storage] = v.place()
}

// isVolumeFile tells volume files from what editors leave.
func isVolumeFile(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".json", ".hcl"}, filepath.Ext(name))
}

func readVolumeFile(path string) []*filed {
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
		v := &filed{file: path, line: d.Line, spec: apiserver.Volume(d.Spec)}
		if d.From != spec.Own {
			v.bad, v.why = true, fmt.Errorf("volume %q is described for %s: register it with volctl volume register, and export it to this file: volctl volume export", d.Spec.ID, cmp.Or(string(d.From), "others"))
		}
		all = append(all, v)
	}
	return all
}
