// Package classes reads the class files of a directory. It turns a request that names a class into
// the complete specification of a new volume.
//
//	classes.go  the classes that are in use, and their problems
//	files.go    reads the files, and decides which files it trusts
//	request.go  combines a class with a request; pure functions
package classes

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// Plugins finds the plugins that classes name.
type Plugins interface {
	IDs() []string // sorted
	View(id string) plugin.View
}

// Options configures a Classes. All fields must be set.
type Options struct {
	Dir     string // the directory of the class files; it need not exist
	Node    string // the node id of the host
	Plugins Plugins
	Log     hclog.Logger
}

// Classes contains the classes of a directory. The methods may be called at the same time.
type Classes struct {
	o Options

	mu    sync.Mutex
	found []entry // in the order of the files
}

// entry is the result of reading one class file.
type entry struct {
	file     string
	doc      spec.ClassDocument // only the id is set if there are mistakes; the id may be empty
	mistakes []mistake
}

// mistake is a reason why a class file cannot be used.
type mistake struct {
	line int // 0 for a mistake that concerns the whole file
	text string
}

// New returns a Classes without classes. Reload reads the files.
func New(o Options) *Classes { return &Classes{o: o} }

// Reload reads the class files again. It logs each mistake that the last reading did not find.
func (c *Classes) Reload() {
	found := readDir(c.o.Dir)

	c.mu.Lock()
	defer c.mu.Unlock()

	known := map[string]bool{}
	for _, e := range c.found {
		for _, m := range e.mistakes {
			known[place(e.file, m.line)+m.text] = true
		}
	}
	for _, e := range found {
		for _, m := range e.mistakes {
			if !known[place(e.file, m.line)+m.text] {
				c.o.Log.Warn("cannot use a class file; no volume can be created with its class", "at", place(e.file, m.line), "error", m.text)
			}
		}
	}

	c.found = found
}

// place returns a file and a line for messages.
func place(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

// entries returns the class files that were read last.
func (c *Classes) entries() []entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.found
}

// All returns all classes, also those with mistakes, sorted by their ids.
func (c *Classes) All() []api.Class {
	all := []api.Class{}
	for _, e := range c.entries() {
		one := api.Class{Spec: e.doc.Spec, File: e.file, Warnings: e.doc.Warnings, Volumes: []string{}}
		if len(e.mistakes) > 0 {
			one.Line, one.Problem = e.mistakes[0].line, e.mistakes[0].text
			all = append(all, one)
			continue
		}

		id, err := c.pluginOf(e.doc.Spec)
		if one.PluginID = id; err != nil {
			one.Line, one.Problem = e.doc.Line, err.Error()
		} else {
			one.PluginState = c.o.Plugins.View(id).State
		}
		all = append(all, one)
	}

	slices.SortStableFunc(all, func(a, b api.Class) int { return strings.Compare(a.Spec.ID, b.Spec.ID) })
	return all
}

// Problems returns the mistakes that an operator must correct.
func (c *Classes) Problems() (all []api.Problem) {
	add := func(e entry, m mistake) {
		p := api.Problem{Subject: e.file, Message: m.text, Command: fixIt}
		if m.line > 0 {
			p.Message = fmt.Sprintf("line %d: %s", m.line, m.text)
		}
		all = append(all, p)
	}

	for _, e := range c.entries() {
		for _, m := range e.mistakes {
			add(e, m)
		}
		if len(e.mistakes) > 0 {
			continue
		}
		if _, problem := c.pluginOf(e.doc.Spec); problem != nil && !errors.Is(problem, volume.ErrPluginUnavailable) {
			add(e, mistake{e.doc.Line, problem.Error()})
		}
	}

	return all
}

// fixIt is the hint for a mistake in a class file.
const fixIt = "fix it, then: systemctl reload volagent"

// Spec returns the complete specification of a volume for a request that names a class. It returns
// volume.ErrNotFound for an unknown class. It returns volume.ErrRefused for a class with a mistake,
// and for a request that the class does not permit. It returns volume.ErrPluginUnavailable if the
// plugin has not reported its driver yet.
func (c *Classes) Spec(request api.VolumeSpec) (api.VolumeSpec, error) {
	e, err := c.find(request.Class)
	if err != nil {
		return api.VolumeSpec{}, err
	}

	id, problem := c.pluginOf(e.doc.Spec)
	if problem != nil {
		problem.Message = fmt.Sprintf("class %q: %s: %s", e.doc.Spec.ID, place(e.file, e.doc.Line), problem.Message)
		return api.VolumeSpec{}, problem
	}
	return combine(class{ClassSpec: e.doc.Spec, plugin: id, node: c.o.Node, file: e.file}, request)
}

// find returns the class with the given id. If several files contain the id, a file without mistakes
// has precedence.
func (c *Classes) find(id string) (entry, error) {
	var bad *entry
	var known []string
	var unread *volume.Error
	for _, e := range c.entries() {
		switch {
		case e.doc.Spec.ID == id && len(e.mistakes) == 0:
			return e, nil
		case e.doc.Spec.ID == id && bad == nil && id != "":
			bad = &e
		case e.file == c.o.Dir:
			unread = volume.Errorf(volume.ErrRefused, "no class can be used: %s", e.mistakes[0].text).WithHint(fixIt)
		}
		if e.doc.Spec.ID != "" {
			known = append(known, e.doc.Spec.ID)
		}
	}

	slices.Sort(known)
	known = slices.Compact(known)
	switch {
	case bad != nil:
		m := bad.mistakes[0]
		return entry{}, volume.Errorf(volume.ErrRefused, "class %q cannot be used: %s: %s", id, place(bad.file, m.line), m.text).WithHint(fixIt)
	case unread != nil:
		return entry{}, unread
	case len(known) == 0:
		return entry{}, volume.Errorf(volume.ErrNotFound, "no class %q: %s contains no class", id, c.o.Dir).
			WithHint("write a class file %s, then: systemctl reload volagent", filepath.Join(c.o.Dir, "NAME.yaml"))
	}
	return entry{}, volume.Errorf(volume.ErrNotFound, "no class %q; the classes are %s", id, strings.Join(known, ", ")).WithHint("volctl class list")
}

// pluginOf returns the id of the plugin that creates the volumes of a class. If there is none, it
// returns an error without the place of the class.
func (c *Classes) pluginOf(s api.ClassSpec) (id string, problem *volume.Error) {
	ids := c.o.Plugins.IDs()
	if s.PluginID != "" {
		if !c.o.Plugins.View(s.PluginID).Known {
			return "", volume.Errorf(volume.ErrNotFound, "no plugin %q; the plugins are %s", s.PluginID, strings.Join(ids, ", ")).WithHint("volctl plugin list")
		}
		return s.PluginID, nil
	}

	var same, silent []string
	all := make([]string, len(ids))
	for i, id := range ids {
		driver := c.o.Plugins.View(id).Info.Driver
		switch all[i] = fmt.Sprintf("%q (%s)", id, driver); driver {
		case s.Driver:
			same = append(same, strconv.Quote(id))
		case "":
			silent = append(silent, strconv.Quote(id))
			all[i] = fmt.Sprintf("%q (has not reported its driver yet)", id)
		}
	}

	switch {
	case len(same) == 1:
		return ids[slices.IndexFunc(ids, func(id string) bool { return strconv.Quote(id) == same[0] })], nil
	case len(same) > 1:
		return "", volume.Errorf(volume.ErrRefused, "several plugins have the driver %q: %s", s.Driver, strings.Join(same, ", ")).
			WithHint("name one of them: write plugin_id in place of the driver")
	case len(silent) > 0:
		return "", volume.Errorf(volume.ErrPluginUnavailable, "no plugin has reported the driver %q yet; %s have not reported any", s.Driver, strings.Join(silent, ", ")).
			WithHint("volctl plugin list")
	}
	return "", volume.Errorf(volume.ErrNotFound, "no plugin has the driver %q; the plugins are %s", s.Driver, strings.Join(all, ", ")).WithHint("volctl plugin list")
}
