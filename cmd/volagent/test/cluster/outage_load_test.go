package cluster_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/cluster/etcdtest"
	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

var outageFor = flag.Duration("outage.for", time.Minute, "shortest time without etcd in TestOutageUnderLoad")

// load is a cluster whose hosts work while etcd does not answer.
type load struct {
	*rig
	traces
	sites   []*site        // the hosts with workers
	third   *site          // a host whose only claim waits for its attachment
	waiting sync.WaitGroup // counts the claims that end after the outage

	steady crew // works before, during and after the outage
	last   crew // works during the outage
}

// TestOutageUnderLoad stops etcd while two hosts work. No local operation fails: further claims under a
// hold, the last detach of a volume and a new claim after it, claims of volumes of one host, and writes.
// Meanwhile plugins are killed, mounts disappear, and agents are killed. The hosts repair all of that
// without etcd. A claim that needs a new hold waits, and so does an attachment that was interrupted.
// After the outage, both end with success, and the hosts give up the holds without claims. An etcd that is
// frozen instead of killed makes no difference. `make outage` keeps etcd away for a minute. (I4, I5, I8)
func TestOutageUnderLoad(t *testing.T) {
	t.Run("killed", func(t *testing.T) {
		outageUnderLoad(t, func(c *etcdtest.Cluster) { c.Kill(0) }, func(c *etcdtest.Cluster) { c.Start(0) })
	})
	t.Run("frozen", func(t *testing.T) {
		outageUnderLoad(t, func(c *etcdtest.Cluster) { c.Freeze(0) }, func(c *etcdtest.Cluster) { c.Thaw(0) })
	})
}

// outageUnderLoad runs TestOutageUnderLoad with the functions that begin and end the outage.
func outageUnderLoad(t *testing.T, begin, end func(*etcdtest.Cluster)) {
	t.Helper()
	t.Parallel()
	l := newLoad(t)
	for _, s := range l.sites {
		l.startSteady(s)
	}
	l.awaitRounds("before the outage")
	attach := l.san.Hold("ControllerPublishVolume", "h3")
	waiting := map[string]<-chan error{"pend": l.startClaim(l.third, "pend")}
	l.awaitHeld("ControllerPublishVolume")

	begin(l.etcd)
	begun := time.Now()
	attempts := len(l.calls("h3")) // the one call that is held
	l.awaitOutage()
	attach()
	for _, s := range l.sites {
		waiting[s.fresh] = l.startClaim(s, s.fresh)
		l.startLast(s)
	}
	for _, s := range l.sites {
		l.killPlugin(s)
		l.loseMounts(s)
		l.killAgent(s)
	}
	l.awaitRounds("during the outage")
	if !testing.Short() {
		time.Sleep(time.Until(begun.Add(*outageFor))) // not a wait: the flag is the length of the outage
	}
	l.last.end()
	l.expectWaiting(waiting, attempts)

	end(l.etcd)
	for id, done := range waiting {
		if err := <-done; err != nil {
			t.Errorf("after the outage, the claim of %s ended with: %v", id, err)
		}
	}
	l.awaitRounds("after the outage")
	l.steady.end()
	l.expectAgreement()
}

// newLoad starts the hosts. The hosts with workers hold some volumes.
func newLoad(t *testing.T) *load {
	t.Helper()
	l := &load{rig: newRig(t, 1, 3, san.Config{Attach: true, Stage: true}), traces: traces{counts: map[string]int{}}}
	l.share("pend", multi)
	for _, h := range l.hosts {
		s := newSite(h)
		t.Cleanup(s.client.Close)
		if s.name == "h3" {
			l.third = s
			continue
		}
		l.sites = append(l.sites, s)
		l.share(s.fresh, multi)
		for _, id := range s.held() {
			l.share(id, multi)
			s.bases[id] = claim(h, id, "base")
		}
		s.Volctl("volume", "create", s.alone[0], "--plugin", "local", "--param", "type=directory", "--access-mode", "single-node-multi-writer")
		// With a claim that stays, no worker waits for an unstage that the death of the agent interrupts. The
		// bundled driver has two minutes for this call.
		s.bases[s.alone[0]] = claim(h, s.alone[0], "base")
		ownOn(h, l.san, s.alone[1])
		s.mounts = s.baseMounts()
	}
	t.Cleanup(func() { // before the agents end
		l.last.end()
		l.steady.end()
		l.waiting.Wait()
	})
	return l
}

// startClaim starts a claim that ends after the outage, and returns a channel for its end.
func (l *load) startClaim(s *site, id string) <-chan error {
	done := make(chan error, 1)
	l.waiting.Go(func() {
		_, err := s.claim(l.t.Context(), id, "web", *outageFor+3*time.Minute)
		done <- err
	})
	return done
}

// awaitOutage waits until every agent has noticed that etcd does not answer.
func (l *load) awaitOutage() {
	l.t.Helper()
	for _, s := range append(slices.Clone(l.sites), l.third) {
		s.Await("the outage on "+s.name, func() bool {
			n, err := s.client.Node(l.t.Context())
			s.Must(err)
			return !n.Cluster.Reachable
		})
	}
}

// killPlugin kills the plugin of a host. It runs again, and serves a claim.
func (l *load) killPlugin(s *site) {
	l.t.Helper()
	old := s.PluginPID("san")
	s.Must(syscall.Kill(old, syscall.SIGKILL))
	s.Await("the restart of the plugin of "+s.name, func() bool {
		pid := s.PluginPID("san")
		return pid != 0 && pid != old
	})
	l.expectUse(s, "after-plugin")
}

// loseMounts unmounts paths of a host. The agent mounts the volume there again.
func (l *load) loseMounts(s *site) {
	l.t.Helper()
	v, ok := volumeOn(s.Host, s.quiet)
	if v.StagingPath == "" {
		l.t.Fatalf("%s has no staging path: %+v (%t)", s.quiet, v, ok)
	}
	target := claim(s.Host, s.quiet, "lost")
	s.Must(write(s.Host, target, "kept", "text"))
	for _, c := range []struct {
		what  string
		paths []string
	}{
		{"a target", []string{target}},
		{"the staging path", []string{v.StagingPath}},
		{"all mounts", []string{target, s.bases[s.quiet], v.StagingPath}},
	} {
		harness.WhileFrozen(s.Host, func() {
			for _, path := range c.paths {
				harness.Unmount(l.t, path)
			}
		})
		s.Await("the repair of "+c.what+" on "+s.name, func() bool {
			s.Volctl("volume", "status", s.quiet) // the agent compares the mounts for a status
			return !slices.ContainsFunc(c.paths, func(path string) bool { return s.mountAt(path) == "" })
		})
		if got := read(s.Host, target, "kept"); got != "text" {
			l.t.Errorf("after the repair of %s on %s, the file contains %q", c.what, s.name, got)
		}
		l.expectUse(s, "after-repair")
	}
	s.Volctl("volume", "detach", s.quiet, "lost")
}

// killAgent kills the agent of a host, and starts it again. Its claims are as before.
func (l *load) killAgent(s *site) {
	l.t.Helper()
	s.life.Add(1)
	s.Kill()
	s.Start("san")
	s.life.Add(1)
	claims := s.Claims()
	for id := range s.bases {
		mine := id != s.last // a worker has detached this claim
		if mine && !slices.Contains(claims, id+" base") {
			l.t.Errorf("after the restart of the agent of %s, the claims are %q", s.name, claims)
		}
	}
	l.expectUse(s, "after-restart")
}

// expectUse uses the quiet volume of a host. It ends the test if that or another local operation has
// failed.
func (l *load) expectUse(s *site, alloc string) {
	l.t.Helper()
	l.use(s, s.quiet, alloc)
	l.expectNoFailure()
}

// expectWaiting checks that no claim that needs the cluster has ended, and that the third host has made no
// controller call and no mount. The hosts have kept their holds, and the mounts of their workers.
func (l *load) expectWaiting(waiting map[string]<-chan error, attempts int) {
	l.t.Helper()
	for id, done := range waiting {
		select {
		case err := <-done:
			l.t.Fatalf("during the outage, the claim of %s ended with: %v", id, err)
		default:
		}
	}
	if n := len(l.calls("h3")); n != attempts {
		l.t.Errorf("during the outage, h3 made %d calls to attach or detach a volume", n-attempts)
	}
	if mounts := l.third.Mounts(); strings.Contains(mounts, " san:") {
		l.t.Errorf("during the outage, h3 mounted a volume:\n%s", mounts)
	}
	for _, s := range l.sites {
		if got := s.baseMounts(); got != s.mounts {
			l.t.Errorf("during the outage, the mounts of %s changed:\n%s\nwere:\n%s", s.name, got, s.mounts)
		}
		if strings.Contains(s.Mounts(), " san:disk-"+s.last+"/") {
			l.t.Errorf("%s is mounted on %s without a claim", s.last, s.name)
		}
		attached := func(a san.Attachment) bool { return a.Volume == "disk-"+s.last && a.Node == s.name }
		if !slices.ContainsFunc(l.san.Attachments(), attached) {
			l.t.Errorf("during the outage, %s was detached from %s", s.last, s.name)
		}
	}
}

// expectAgreement checks that no local operation failed, and that holds, mounts and attachments agree
// before and after the last detaches.
func (l *load) expectAgreement() {
	l.t.Helper()
	l.expectNoFailure()
	l.t.Logf("no local operation failed: %v", l.counts)
	want := map[string]string{"pend": "h3"}
	for _, s := range l.sites {
		for _, id := range append(s.busy, s.quiet, s.fresh) {
			want[id] = s.name
		}
	}
	l.awaitAgreement("the outage", want)

	l.third.Volctl("volume", "detach", "pend", "web", "--timeout", "60s")
	for _, s := range l.sites {
		for _, id := range append(s.busy, s.quiet, s.alone[0]) {
			s.Volctl("volume", "detach", id, "base", "--timeout", "60s")
		}
		s.Volctl("volume", "detach", s.fresh, "web", "--timeout", "60s")
	}
	l.awaitAgreement("the last detach", map[string]string{})
	l.awaitGone()
	for id := range want {
		l.expectFree(id)
	}
}

// awaitAgreement waits until the holds, mounts and attachments of all volumes are as expected.
func (l *load) awaitAgreement(after string, want map[string]string) {
	l.t.Helper()
	hosts := map[string]*harness.Host{}
	for _, h := range l.hosts {
		hosts[nameOf(h)] = h
	}
	awaitAgreement(l.t, after, l.san, hosts, want, func() map[string]string {
		holds := map[string]string{}
		for _, kv := range l.keys() {
			if f := strings.Split(kv.Key, "/"); f[0] == "holds" {
				holds[f[2]] += f[1]
			}
		}
		return holds
	})
}

// newSite names the volumes of a host.
func newSite(h *harness.Host) *site {
	name := nameOf(h)
	return &site{
		Host: h, name: name, client: apiclient.New(h.Socket()), bases: map[string]string{},
		busy: []string{"busy1-" + name, "busy2-" + name}, last: "last-" + name, quiet: "quiet-" + name,
		alone: []string{"bundled-" + name, "disk-" + name}, fresh: "fresh-" + name,
	}
}

// held returns the volumes that the host holds before the outage.
func (s *site) held() []string { return append(slices.Clone(s.busy), s.last, s.quiet) }

// mountAt returns the line of the mount table for a path, or "".
func (s *site) mountAt(path string) string {
	for line := range strings.Lines(s.Mounts()) {
		if strings.Fields(line)[4] == path {
			return line
		}
	}
	return ""
}

// baseMounts returns the mounts of the claims that stay through the outage.
func (s *site) baseMounts() (text string) {
	for _, id := range s.busy {
		text += fmt.Sprintf("%s: %s\n", id, s.mountAt(s.bases[id]))
	}
	return text
}
