package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/agent/records"
	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/agent/systemd"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr"
	"github.com/volagent/volagent/volmgr/mount"
	"github.com/volagent/volagent/volmgr/volume"
)

// newDoctor connects the doctor with this host.
func (a *agent) newDoctor(host *mount.Host, steps *volmgr.Manager) *doctor.Doctor {
	db := &doctorDB{dir: a.c.DataDir, db: a.db.DB}
	return doctor.New(doctor.Options{
		Root: a.c.mountRoot(), Records: records.Living{Store: a.db, Owners: a.owners}, Queue: a.queue, Owners: a.owners, Halt: a.halt, OtherDataDir: a.otherDataDir, Now: time.Now,
		Host: doctorHost{host, steps}, Notes: doctorNotes{a.db, steps, a.db.Notes}, Guards: a.dirs,
		Database: db.look, Deregistered: a.doctorLeftovers, Tests: a.doctorTests, Plugins: a.doctorPlugins,
		System: func(ctx context.Context, helper bool) doctor.System { return a.doctorSystem(ctx, host, helper) },
		Fstab:  func() ([]fstab.Entry, error) { return fstab.Read(fstab.System(os.Getenv)) },
		Unmet:  a.doctorUnmet, Runtimes: a.doctorRuntimes,
	})
}

// examiner converts the doctor's findings to API types.
type examiner struct{ *doctor.Doctor }

// Examine looks at everything once.
func (e examiner) Examine(ctx context.Context) api.Doctor {
	r := e.Doctor.Examine(ctx)
	out := api.Doctor{
		Time: r.At.UTC(), TookMS: float64(r.Took.Microseconds()) / 1000, Volumes: r.Volumes, Claims: r.Claims, Plugins: r.Plugins, Findings: []api.DoctorFinding{},
	}
	for _, f := range r.Findings {
		out.Findings = append(out.Findings, api.DoctorFinding{
			ID: f.ID, Kind: f.Kind, Severity: string(f.Severity), Subject: f.Subject, What: f.What, Then: f.Then, Do: f.Do, Fix: f.Fix,
		})
	}

	return out
}

// The doctor runs only fixes that are safe.
func (e examiner) Fix(ctx context.Context, ids []string) []api.DoctorFixed {
	out := []api.DoctorFixed{}
	for _, d := range e.Doctor.Fix(ctx, ids) {
		out = append(out, api.DoctorFixed(d))
	}
	return out
}

// checkWithin bounds the look at the state database's file and at its disk.
const checkWithin = 5 * time.Second

// doctorDB looks at the state database.
type doctorDB struct {
	dir   string
	db    *statedb.DB
	check doctor.Bounded[error]
	disk  doctor.Bounded[unix.Statfs_t]
}

func (d *doctorDB) look() doctor.Database {
	out := doctor.Database{Dir: d.dir, Fault: d.db.Fault(), NoLog: d.db.NoLog()}
	loss := d.db.Node().Loss
	out.Loss = doctor.Loss{At: loss.At, Why: loss.Why, Volumes: loss.Volumes, Claims: loss.Claims, Copy: loss.Copy}
	bad, err := d.check.Run(checkWithin, func() (error, error) { return d.db.Verify(), nil })
	if out.Check = bad; err != nil {
		out.Check = err
	}
	st, err := d.disk.Run(checkWithin, func() (st unix.Statfs_t, err error) { return st, unix.Statfs(d.dir, &st) })
	size := uint64(st.Frsize) //nolint:gosec // no size is negative
	out.Disk = doctor.Disk{Err: err, Total: st.Blocks * size, Free: st.Bavail * size, Inodes: st.Files, FreeInodes: st.Ffree}
	file := filepath.Join(d.dir, "state.db")
	out.Kept, _ = filepath.Glob(file + ".damaged-*") // the patterns are valid
	out.Old, _ = filepath.Glob(file + ".schema-*")
	out.Foreign, _ = filepath.Glob(filepath.Join(d.dir, "state.*.foreign-*"))
	var foreign *statedb.Foreign
	if errors.As(out.Fault, &foreign) {
		out.Refused = foreign.Kept
	}

	return out
}

// doctorHost gives the doctor access to the host.
type doctorHost struct {
	host  *mount.Host
	steps *volmgr.Manager
}

// Mounts returns the mount table.
func (h doctorHost) Mounts() ([]doctor.Mounted, error) {
	entries, err := h.host.Under("/")
	all := make([]doctor.Mounted, 0, len(entries))
	for _, e := range entries {
		all = append(all, doctor.Mounted{
			Path: e.Path, Device: e.Identity.Device, Root: e.Identity.Root, FSType: e.Identity.FSType, Source: e.Source, Canary: mount.IsCanary(e),
		})
	}

	return all, err
}

// someNames limits the entries that are read of a directory. It is one more than the doctor shows.
const someNames = 4

// Contents looks at a path where nothing is mounted.
func (h doctorHost) Contents(ctx context.Context, path string) (doctor.Contents, error) {
	c, err := h.host.Contents(ctx, path, someNames, false)
	return contents(c), err
}

func contents(c mount.Contents) doctor.Contents {
	out := doctor.Contents{Mounted: c.Mounted, Kind: c.Kind, Empty: c.Empty(), Holds: fstab.Some(c.Names)}
	if c.Size > 0 {
		out.Holds = volume.Size(c.Size)
	}
	return out
}

// Block asks the kernel about a device.
func (h doctorHost) Block(dev volume.Device) (doctor.Block, bool) {
	return doctor.Block(h.host.Block(dev.Number)), !h.host.Replaced(dev)
}

// Loops returns the loop devices that have a file.
func (h doctorHost) Loops() []doctor.Loop {
	var all []doctor.Loop
	for dev, b := range h.host.Loops() {
		all = append(all, doctor.Loop{Device: dev, Block: doctor.Block(b)})
	}
	return all
}

// Leftovers returns the entries below the mount directories that are not in known.
func (h doctorHost) Leftovers(ctx context.Context, known map[string]bool) ([]doctor.Leftover, error) {
	found, err := h.steps.Leftovers(ctx, known)
	all := make([]doctor.Leftover, 0, len(found))
	for _, l := range found {
		all = append(all, doctor.Leftover{Path: l.Path, Contents: contents(l.Contents), Err: l.Err})
	}
	return all, err
}

// RemoveLeftover removes an empty leftover.
func (h doctorHost) RemoveLeftover(path string) error { return h.steps.RemoveLeftover(path) }

// doctorLeftovers returns the leftovers of forced deregisters.
func (a *agent) doctorLeftovers() (all []doctor.Deregistered) {
	for _, d := range a.db.Debts() {
		r := d.Whole()
		all = append(all, doctor.Deregistered{
			Record: r, Since: d.Since, Left: provision.Behind(r), Calls: r.PendingCallState(a.queue.Last(r), a.plugins.View(r.Volume.PluginID)),
		})
	}

	return all
}

// doctorTests returns the running tests of plugins, and the leftovers of earlier tests.
func (a *agent) doctorTests() (all []doctor.Test) {
	for id, left := range a.usage.Scratches() {
		paths := append([]string{left.Staging}, left.Targets...)
		all = append(all, doctor.Test{Plugin: id, Running: a.tests.Testing(id), Name: plugintest.Name(left), Begun: left.Begun, Paths: append(paths, left.Dirs...)})
	}

	return all
}

// doctorUnmet returns the settings that are not in effect, in the same words as the host's status.
func (a *agent) doctorUnmet() (all []doctor.Unmet) {
	for _, p := range a.files.Problems() {
		all = append(all, doctor.Unmet{Kind: doctor.VolumeFile, Subject: p.Subject, Why: p.Message, Do: p.Command})
	}
	for _, p := range a.unscraped() {
		all = append(all, doctor.Unmet{Kind: doctor.MetricsAddress, Subject: p.Subject, Why: p.Message, Do: p.Command})
	}

	return all
}

// doctorPlugins returns all plugins, with systemd's information about those that are units.
func (a *agent) doctorPlugins(ctx context.Context) (all []doctor.Plugin) {
	for _, st := range a.plugins.Statuses() {
		p := doctor.Plugin{ID: st.ID, View: a.plugins.View(st.ID), Since: st.Since, Pending: st.Pending, Warnings: st.Warnings}
		for _, part := range st.Parts {
			if r := part.Running["container.runtime"]; r != "" {
				p.Runtime = r
			}
			if name := part.Running["unit"]; name != "" {
				p.Units = append(p.Units, a.doctorUnit(ctx, name))
			}
		}

		p.View.Restarts, p.View.State, p.View.Reason = st.Restarts, string(st.State), st.Reason
		p.View.Ready = st.State == supervisor.Ready
		all = append(all, p)
	}

	return all
}

func (a *agent) doctorUnit(ctx context.Context, name string) doctor.Unit {
	u := doctor.Unit{Name: name}
	if s, err := a.systemd.Settings(ctx, name); err == nil && s.Load == "loaded" {
		u.Before, u.Asked = s.Before, true
	}
	return u
}

// doctorSystem returns facts about the host outside the agent.
func (a *agent) doctorSystem(ctx context.Context, host *mount.Host, helper bool) doctor.System {
	s := doctor.System{Namespace: host.Namespace(), Unit: systemd.OwnUnit()}
	if info, err := os.Stat("/proc/1/ns/mnt"); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			s.Init = st.Ino
		}
	}

	if s.Unit != "" {
		if set, err := a.systemd.Settings(ctx, s.Unit); err == nil {
			s.State = set.FileState
		}
	}

	if helper {
		s.Helper = mountHelper(ctx)
	}

	return s
}

// helpers are the programs that mount(8) and umount(8) run for volumes.
var helpers = []string{"/sbin/mount.csi", "/sbin/umount.csi"}

// mountHelper returns the first problem with the helpers, or "" if there is none.
func mountHelper(ctx context.Context) string {
	for _, path := range helpers {
		program, err := filepath.EvalSymlinks(path)
		switch {
		case os.IsNotExist(err):
			return "there is no " + path
		case err != nil:
			return path + " cannot be used: " + err.Error()
		case filepath.Base(program) != "volctl":
			return path + " is " + program + ", and not volctl"
		}

		version, err := versionOf(ctx, program)
		if err != nil {
			return path + " cannot be run: " + err.Error()
		}
		if version != api.Version {
			return path + " is of version " + strings.TrimSpace(version) + ", and the agent of " + api.Version
		}
	}

	return ""
}
