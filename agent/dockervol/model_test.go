package dockervol

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// containers are the containers of docker in the model. Their names are the ids of their mounts.
var containers = [...]string{"a", "b"}

// dockerd models docker. It counts Mounts in memory, as docker's MountPoint does.
type dockerd struct {
	running [len(containers)]bool
	copying [len(containers)]bool // docker cp is running
	active  [len(containers)]int
	process int
}

// state is one state of the model. It contains the state of docker and the data of the agent on
// disk.
type state struct {
	docker dockerd
	refs   [len(containers)]volume.RuntimeRef
	seq    uint64 // number of the claim; 0 means no claim
	exact  bool   // no process has been killed so far
}

// event is one event of a container. An event that concerns no single container has container -1.
type event struct {
	what      string
	container int
	kill      int  // the agent is killed at this step of the call; 0 means never
	repeat    bool // docker repeats the interrupted call
	fails     bool // mounting the volume fails
}

// errKilled is the error of a step of a killed agent.
var errKilled = errors.New("kill -9")

// mostSteps is the highest step at which the model kills the agent. No call has more steps at which
// a kill makes a difference.
const mostSteps = 6

// events returns all possible events.
func events() (all []event) {
	for c := range containers {
		for _, what := range []string{"start", "stop", "copy", "copied"} {
			all = append(all, event{what: what, container: c})
			for kill := 1; kill <= mostSteps; kill++ {
				all = append(all, event{what: what, container: c, kill: kill}, event{what: what, container: c, kill: kill, repeat: true})
			}
		}
		all = append(all, event{what: "start", container: c, fails: true}, event{what: "copy", container: c, fails: true})
	}
	for _, what := range []string{"reap", "docker killed", "docker killed, counts restored", "docker killed with its containers"} {
		all = append(all, event{what: what, container: -1})
	}
	return all
}

// run executes events in one state of the model, with its own agent.
type run struct {
	t *testing.T
	w *world
	s *Service
	state
	steps int // steps until the agent is killed; 0 means never
}

func newRun(t *testing.T, from state) *run {
	w, _ := newWorld(t, "data")
	r := &run{t: t, w: w, state: from}
	v := volume.RuntimeVolume{Runtime: plugin.RuntimeDocker, Name: "data", VolumeID: "data", CreatedAt: w.clock}
	for _, ref := range from.refs {
		if ref.ID != "" {
			v.Refs = append(v.Refs, ref)
		}
	}
	w.names[v.Key()] = v
	if w.seq = 1; from.seq != 0 {
		w.seq = from.seq
		w.volumes["data"].Claims["docker"] = volume.Claim{
			Alloc: "docker", Seq: from.seq, Wanted: true, State: volume.Mounted, Terms: volume.Terms{Owner: v.Owner()}, Target: "/t/docker/data",
			Mount: &volume.MountIdentity{Boot: "b", Device: "1:1", Root: "/"},
		}
	}
	w.step = func() {
		if r.steps > 0 {
			if r.steps--; r.steps == 0 {
				panic(errKilled)
			}
		}
	}
	r.agent()
	return r
}

// agent starts an agent with the current state of docker.
func (r *run) agent() {
	r.s = r.w.next()
	r.look()
	r.s.Reap(r.t.Context())
}

// look updates the fake mount namespaces and the fake runtime from the state of docker.
func (r *run) look() {
	r.w.elsewhere, r.w.using = nil, nil
	for c, id := range containers {
		if r.docker.running[c] {
			r.w.using = append(r.w.using, id)
		}
		if r.docker.running[c] || r.docker.copying[c] {
			r.w.elsewhere = append(r.w.elsewhere, id)
		}
	}
}

// call makes docker send a call. It returns false if docker gets no answer or an error.
func (r *run) call(e event, do func(from Caller) error) bool {
	r.look()
	if e.fails {
		r.w.mount = func(context.Context) error { return errors.New("storage is down") }
	}
	defer func() { r.w.mount = nil }()
	from := Caller{Runtime: plugin.RuntimeDocker, Process: fmt.Sprint("dockerd ", r.docker.process)}
	r.steps = e.kill
	err := func() (err error) {
		defer func() {
			if got := recover(); got != nil {
				err = errKilled
			}
		}()
		err = do(from)
		r.w.step() // the agent may be killed after it has sent the answer
		return err
	}()
	r.steps = 0
	if errors.Is(err, errKilled) {
		r.exact = false
		r.agent()
		if e.repeat {
			err = do(from)
		}
	}
	return err == nil
}

func (r *run) mount(e event) bool {
	ok := r.call(e, func(from Caller) error {
		_, err := r.s.Mount(r.t.Context(), from, "data", containers[e.container])
		return err
	})
	if ok {
		r.docker.active[e.container]++
	}
	return ok
}

// unmount sends an Unmount if docker's own count requires one.
func (r *run) unmount(e event) {
	if r.docker.active[e.container] == 0 {
		return
	}
	r.docker.active[e.container]--
	r.call(e, func(from Caller) error {
		return r.s.Unmount(r.t.Context(), from, "data", containers[e.container])
	})
}

// do applies an event. It returns false if the event is impossible in the current state.
func (r *run) do(e event) bool {
	d, c := &r.docker, e.container
	switch e.what {
	case "start":
		if d.running[c] {
			return false
		}
		d.running[c] = r.mount(e)
	case "stop":
		if !d.running[c] {
			return false
		}
		d.running[c] = false
		r.unmount(e)
	case "copy":
		if d.copying[c] {
			return false
		}
		d.copying[c] = r.mount(e)
	case "copied":
		if !d.copying[c] {
			return false
		}
		d.copying[c] = false
		r.unmount(e)
	case "reap":
		r.reap()
	default:
		r.killDocker(e.what)
	}
	return true
}

// reap runs enough passes of the reaper to remove every leaked reference.
func (r *run) reap() {
	r.look()
	for range 1 + agreeing {
		r.s.Reap(r.t.Context())
		r.w.clock = r.w.clock.Add(2 * youngest)
	}
}

// killDocker ends the docker daemon and its copy operations. Newer versions of docker restore the
// counts of containers that continue to run.
func (r *run) killDocker(how string) {
	r.exact = false
	r.docker.process++
	for c := range containers {
		r.docker.copying[c], r.docker.active[c] = false, 0
		switch how {
		case "docker killed with its containers":
			r.docker.running[c] = false
		case "docker killed, counts restored":
			if r.docker.running[c] {
				r.docker.active[c] = 1
			}
		}
	}
}

// now returns the current state. It distinguishes only the current docker process from earlier
// ones.
func (r *run) now() state {
	out := r.state
	out.refs, out.seq = [len(containers)]volume.RuntimeRef{}, r.w.volumes["data"].Claims["docker"].Seq
	current := fmt.Sprint("dockerd ", r.docker.process)
	for i, ref := range r.w.names[volume.RuntimeKey("docker", "data")].Refs {
		if ref.By == current {
			ref.By = "dockerd 1"
		} else {
			ref.By = "dockerd 0"
		}
		ref.Since = time.Unix(1e9, 0).UTC()
		out.refs[i] = ref
	}
	out.docker.process = 1
	return out
}

// check compares the states before and after an event. A container must keep its volume and its
// claim.
func check(before, after state) error {
	for c := range containers {
		held := after.docker.running[c] || after.docker.copying[c]
		had := before.docker.running[c] && after.docker.running[c] || before.docker.copying[c] && after.docker.copying[c]
		switch {
		case held && after.seq == 0:
			return fmt.Errorf("%s has the volume, and there is no claim", containers[c])
		case had && after.seq != before.seq:
			return fmt.Errorf("%s has the volume, and the claim is another one", containers[c])
		}
	}
	return nil
}

// ends checks that no claim and no reference remains after all containers have ended.
func ends(t *testing.T, from state) error {
	r := newRun(t, from)
	for c := range containers {
		r.do(event{what: "copied", container: c})
		r.do(event{what: "stop", container: c})
	}
	if !from.exact {
		r.reap()
	}
	if got := r.now(); got.seq != 0 || got.refs[0].ID != "" {
		return fmt.Errorf("all containers have ended, and claim %d stays with the references %+v", got.seq, got.refs)
	}
	return nil
}

// normal changes the number of the claim to 1, so that equivalent states compare equal.
func (s state) normal() state {
	if s.seq != 0 {
		s.seq = 1
	}
	return s
}

// TestModel tries all orders of events: containers start and stop, docker cp runs, Mounts fail, the
// agent is killed at any step, and docker is killed. No container may lose its volume, and no claim
// may remain at the end. Without a kill, this must hold without the reaper.
func TestModel(t *testing.T) {
	t.Parallel()
	type path struct {
		state
		how []event
	}
	first := state{docker: dockerd{process: 1}, exact: true}
	todo, seen := []path{{state: first}}, map[state]bool{first: true}
	for len(todo) > 0 {
		p := todo[0]
		todo = todo[1:]
		if err := ends(t, p.state); err != nil {
			t.Fatalf("%v\nafter %+v", err, p.how)
		}
		for _, e := range events() {
			r := newRun(t, p.state)
			if !r.do(e) {
				continue
			}
			how := append(slices.Clone(p.how), e)
			next := r.now()
			if err := check(p.state, next); err != nil {
				t.Fatalf("%v\nafter %+v\nthe state is %+v", err, how, next)
			}
			next = next.normal()
			tooMany := slices.ContainsFunc(next.refs[:], func(ref volume.RuntimeRef) bool { return ref.More > 2 })
			if !seen[next] && !tooMany {
				seen[next] = true
				todo = append(todo, path{next, how})
			}
		}
	}
	t.Logf("%d states", len(seen))
	if len(seen) < 100 {
		t.Errorf("only %d states were reached", len(seen))
	}
	kinds := map[string]bool{}
	for s := range maps.Keys(seen) {
		for _, ref := range s.refs {
			kinds[fmt.Sprintf("more=%t returned=%t", ref.More > 0, ref.Returned)] = true
		}
	}
	if len(kinds) != 3 {
		t.Errorf("the references reached %v", kinds)
	}
}
