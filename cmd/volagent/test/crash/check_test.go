package crash_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
	"github.com/volagent/volagent/volmgr/volume"
)

// settle waits until agree finds no difference. After the time limit it fails the test with the
// difference.
func (h *crashHost) settle() {
	h.T.Helper()
	end := time.Now().Add(patience)
	for {
		err := h.agree()
		switch {
		case err == nil:
			return
		case h.T.Failed():
			h.T.FailNow()
		case time.Now().After(end):
			h.T.Fatalf("it does not settle: %v\ncalls:\n%s", err, h.Calls(0))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// agree compares the agent's answers with five sources: the mount table, the directories, the
// plugin's attachments, the calls that the plugin received, and the files in the volumes. It
// returns an error that describes the first difference.
func (h *crashHost) agree() error {
	ctx, cancel := h.ctx()
	defer cancel()
	vols, err := h.api.Volumes(ctx)
	if err != nil {
		return err
	}
	w := wanted{h: h}
	for _, v := range vols {
		if err := w.add(v); err != nil {
			return err
		}
	}
	slices.Sort(w.mounts)
	slices.Sort(w.attached)
	slices.Sort(w.view)
	for _, row := range []struct {
		what      string
		got, want []string
	}{
		{"mounts", h.mountPoints(), w.mounts},
		{"directories", h.leftDirs(), w.dirs()},
		{"attached volumes", h.attachments(), w.attached},
		{"the plugin's calls leave", h.pluginView(), w.view},
	} {
		if !slices.Equal(row.got, row.want) {
			return fmt.Errorf("%s: %q, want %q", row.what, row.got, row.want)
		}
	}
	return nil
}

// wanted collects the mounts, files and attachments that must exist according to the agent's
// answers.
type wanted struct {
	h                             *crashHost
	mounts, below, attached, view []string
}

func (w *wanted) add(v api.Volume) error {
	h, id := w.h, v.Spec.ID
	external := v.Spec.ExternalID
	if external != "" {
		dir, ok := h.stored()[external]
		if !ok {
			return fmt.Errorf("the plugin has no volume %q", external)
		}
		if err := h.holds(filepath.Join(dir, "data"), id); err != nil {
			return err
		}
	}
	held := len(v.Claims) > 0
	if x := v.Expansion; x != nil && (x.Want > 0 || x.Node > 0 && held || x.Refused != "") {
		return fmt.Errorf("volume %q is still being expanded: %+v", id, *x)
	}
	is := func(want bool) string {
		if want {
			return "present"
		}
		return "absent"
	}
	if want := is(held && h.Config.Attach); v.Attached != want {
		return fmt.Errorf("volume %q is attached: %s, want %s", id, v.Attached, want)
	}
	if want := is(held && h.Config.Stage); v.Staged != want {
		return fmt.Errorf("volume %q is staged: %s, want %s", id, v.Staged, want)
	}
	if held && h.Config.Attach {
		w.attached = append(w.attached, external)
		w.view = append(w.view, "attached "+external)
	}
	if held && h.Config.Stage {
		w.mounts = append(w.mounts, h.StagingPath(id))
		w.below = append(w.below, h.StagingPath(id))
		w.view = append(w.view, "staged "+external+" "+h.StagingPath(id))
	}
	for _, c := range v.Claims {
		if c.State != api.ClaimMounted || !c.Wanted {
			return fmt.Errorf("the claim of %q on volume %q is %s (wanted: %v)", c.Alloc, id, c.State, c.Wanted)
		}
		if err := errors.Join(h.usable(c), h.reachable(c)); err != nil {
			return err
		}
		w.mounts = append(w.mounts, c.Target)
		if c.At != "" {
			w.mounts = append(w.mounts, c.At)
		}
		note := filepath.Join(h.Dir, "d", "csi", "rec", "meta", volume.VolumeComponent(id)+"@"+volume.AllocComponent(c.Alloc)+".json")
		w.below = append(append(w.below, c.Target, note), volume.TargetDirs(c.Target)...)
		w.view = append(w.view, "published "+external+" "+c.Target)
	}
	return nil
}

// dirs returns the files and directories that must exist below the csi directory. The files include
// the notes of claims.
func (w *wanted) dirs() []string {
	slices.Sort(w.below)
	return slices.Compact(w.below)
}

// holds returns an error unless a directory contains the original file of a volume. It checks only
// volumes in which seed wrote a file.
func (h *crashHost) holds(dir, id string) error {
	if !h.seeded[id] {
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(dir, "file"))
	if err == nil && string(raw) != content(id) {
		err = fmt.Errorf("it holds %q", raw)
	}
	if err != nil {
		return fmt.Errorf("volume %q lost its file in %s: %w", id, dir, err)
	}
	return nil
}

// usable returns an error unless the claim's alloc can use the volume in the way that the claim
// allows.
func (h *crashHost) usable(c api.Claim) error {
	if err := h.holds(c.Path, c.Volume); err != nil {
		return err
	}
	name := filepath.Join(c.Path, "by-"+c.Alloc)
	err := os.WriteFile(name, []byte(c.Alloc), 0o644)
	switch {
	case c.ReadOnly && !errors.Is(err, syscall.EROFS):
		return fmt.Errorf("a read-only claim could be written to: %w", err)
	case !c.ReadOnly && err != nil:
		return err
	}
	return nil
}

// reachable checks the access rights of a claim's target. Other users can reach the target only if
// the alloc needs this access. The mount options nosuid and nodev must be set, so that files in the
// volume give such users no additional rights.
func (h *crashHost) reachable(c api.Claim) error {
	modes := map[string]os.FileMode{filepath.Dir(c.Target): 0o711, filepath.Join(h.Dir, "d/csi/rec/staging"): 0o700}
	if c.At != "" {
		modes[filepath.Dir(c.Target)] = 0o700
	}
	for dir, want := range modes {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm() != want {
			return fmt.Errorf("%s has mode %o, want %o", dir, info.Mode().Perm(), want)
		}
	}
	for line := range harness.Lines(h.Mounts()) {
		f := strings.Fields(line)
		if opts := "," + f[5] + ","; f[4] == c.Target && (!strings.Contains(opts, ",nosuid,") || !strings.Contains(opts, ",nodev,")) {
			return fmt.Errorf("%s has the options %s", c.Target, f[5])
		}
	}
	return nil
}

// mountPoints returns the mount points below the host's directory, one for each mount. The list
// excludes the data dir.
func (h *crashHost) mountPoints() []string {
	var all []string
	for line := range harness.Lines(h.Mounts()) {
		if at := strings.Fields(line)[4]; at != filepath.Join(h.Dir, "d") {
			all = append(all, at)
		}
	}
	slices.Sort(all)
	return all
}

// leftDirs returns all files and directories below the csi directory, without the content of
// mounts.
func (h *crashHost) leftDirs() []string {
	var all []string
	root := filepath.Join(h.Dir, "d", "csi")
	mounts := h.mountPoints()
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // another process removed the path meanwhile
		}
		if err != nil {
			return err
		}
		switch path {
		case root, root + "/rec", root + "/rec/staging", root + "/rec/per-alloc", root + "/rec/meta":
			return nil
		}
		all = append(all, path)
		if slices.Contains(mounts, path) {
			return fs.SkipDir
		}
		return nil
	})
	h.Must(err)
	slices.Sort(all)
	return all
}

// attachments returns the volumes that the plugin has attached to this node.
func (h *crashHost) attachments() []string {
	var all []string
	for id, dir := range h.stored() {
		var a struct{ Nodes map[string]any }
		file := filepath.Join(dir, "attached.json")
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if h.readJSON(file, &a); len(a.Nodes) > 0 {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}

// pluginView returns the effects that the plugin's journal shows as made and not undone. A question
// mark marks an effect whose call did not succeed.
func (h *crashHost) pluginView() []string {
	j, err := csitest.LoadJournal(h.Config.JournalPath())
	h.Must(err)
	if len(j.Violations) > 0 {
		h.T.Fatalf("a rule of CSI was broken: %s\ncalls:\n%s", j.Violations[0], j.Calls.Mutating())
	}
	view := map[string]string{}
	for _, c := range j.Calls {
		what, makes := thing(c)
		switch {
		case what == "":
		case makes && c.OK():
			view[what] = ""
		case makes && view[what] == "" && has(view, what):
			// An earlier call already made the effect, and this failed call does not undo it.
		case makes:
			view[what] = "?"
		case c.OK(), c.Ended() && !c.Late && (c.Code == "NotFound" || c.Method == csitest.NodeUnpublish && !c.Mounted):
			delete(view, what)
		}
	}
	var all []string
	for what, doubt := range view {
		all = append(all, what+doubt)
	}
	slices.Sort(all)
	return all
}

// atMost fails the test if the plugin received the same call for the same object more than n times.
func (h *crashHost) atMost(n int, since int64) {
	h.T.Helper()
	type call struct{ method, what string }
	made := map[call]int{}
	for _, c := range h.Calls(since) {
		what, _ := thing(c)
		if made[call{c.Method, what}]++; made[call{c.Method, what}] == n+1 {
			h.T.Errorf("%s was called more than %d times for %s:\n%s", c.Method, n, what, h.Calls(since))
		}
	}
}

func has(m map[string]string, key string) bool { _, ok := m[key]; return ok }

// thing returns a name for the effect of a call. It also reports whether the call makes or undoes
// this effect.
func thing(c csitest.Call) (what string, makes bool) {
	switch c.Method {
	case csitest.ControllerPublish, csitest.ControllerUnpublish:
		return "attached " + c.Volume, c.Method == csitest.ControllerPublish
	case csitest.NodeStage, csitest.NodeUnstage:
		return "staged " + c.Volume + " " + c.StagingPath, c.Method == csitest.NodeStage
	case csitest.NodePublish, csitest.NodeUnpublish:
		return "published " + c.Volume + " " + c.TargetPath, c.Method == csitest.NodePublish
	default:
		return "", false
	}
}

// finish detaches all claims and stops the agent with SIGTERM. It then checks that the state
// database contains no pending call and no volume that the node still uses.
func (h *crashHost) finish() {
	h.T.Helper()
	for _, c := range h.claimList() {
		h.Must(h.detach(c.Volume, c.Alloc))
	}
	h.settle()
	h.Must(h.Signal(syscall.SIGTERM))
	if left := h.mountPoints(); len(left) > 0 {
		h.T.Errorf("still mounted: %q", left)
	}
	records, debts := h.records()
	for _, d := range debts {
		r := d.Whole()
		r.Node.Watches = nil // watches do not count, because they only wait for late effects
		if r.Held() {
			h.T.Errorf("still owed: %+v", r)
		}
	}
	for _, r := range records {
		r.Node.Watches = nil // a watch only waits for late effects
		if r.Held() || r.Node.Mode != nil {
			h.T.Errorf("still held: %+v", r)
		}
	}
	stored := h.stored()
	if h.seeded["data"] {
		if err := h.holds(filepath.Join(stored["ext/data"], "data"), "data"); err != nil {
			h.T.Error(err)
		}
	}
	var have []string
	for _, r := range records {
		have = append(have, r.Volume.ExternalID)
	}
	slices.Sort(have)
	if ids := slices.Sorted(maps.Keys(stored)); !slices.Equal(ids, have) && !h.orphans {
		h.T.Errorf("the plugin has volumes %q, the records %q", ids, have)
	}
}
