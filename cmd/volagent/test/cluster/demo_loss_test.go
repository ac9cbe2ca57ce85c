package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/csitest/san"
)

// loseHost switches host c off while a process there writes to the volume db. The plugin of db has "fence:
// detach", so host b gets the volume without a person.
func (d *demo) loseHost() {
	d.register("plain", "logs", "single-node-multi-writer")
	logs := d.run(d.c, "volctl", "volume", "claim", "logs", "--alloc", "web")
	d.run(d.c, "sh", "-c", "echo logged on h3 > "+logs+"/log")
	writer := "while :; do echo written on h3 >> " + d.last + "/hello; sleep 0.1; done"
	d.print("  %s $ %s &\n", d.c.Name, writer)
	d.c.Spawn(nil, "sh", "-c", writer)
	d.c.Await("writes of "+d.c.Name, func() bool { return d.writesOf(d.c.Name, "disk-db") > 5 })
	d.proof("the SAN accepts the writes of %s", d.c.Name)

	mark := len(d.san.Events())
	d.print("  %s loses its power\n", d.c.Name)
	d.c.PowerOff()
	lost := time.Now()
	path := d.run(d.b, "volctl", "volume", "claim", "db", "--alloc", "web", "--timeout", "90s")
	d.proof("%s got the volume %.0f seconds after the loss; the lease of a host lasts 15 seconds", d.b.Name, time.Since(lost).Seconds())

	d.check(strings.Contains(d.b.MustRun("tail", "-n", "1", path+"/hello"), "written on h3"), "the data that %s has written is there", d.c.Name)
	d.run(d.b, "sh", "-c", "echo written on h2 after the loss >> "+path+"/hello")
	detached, attached := d.firstEvent(mark, "ControllerUnpublishVolume", d.c.Name), d.firstEvent(mark, "ControllerPublishVolume", d.b.Name)
	d.check(detached > 0 && detached < attached, "the SAN detached %s before it attached %s", d.c.Name, d.b.Name)
	out := d.run(d.a, "volctl", "node", "status", d.c.Name)
	d.check(showsTakeover(out, "db", "detach"), "the cluster has recorded the proof: the detach")
	out = d.run(d.a, "volctl", "volume", "status", "db")
	d.check(strings.Contains(out, "from host "+d.c.Name), "the volume shows from which host it was taken")
	d.path = path
}

// showsTakeover reports whether the status of a host shows that a volume was taken over with a proof.
func showsTakeover(status, id, proof string) bool {
	for line := range strings.Lines(status) {
		if strings.HasPrefix(strings.Join(strings.Fields(line), " "), "Taken over "+id+" "+proof+" ") {
			return true
		}
	}
	return false
}

// writesOf returns the number of writes of a node that a disk has accepted.
func (d *demo) writesOf(node, disk string) (n int) {
	for _, w := range d.san.Writes(disk) {
		if w.Node == node {
			n++
		}
	}
	return n
}

// firstEvent returns the number of the first successful answer of the SAN to a call for a node, after the
// first n events. It returns 0 if there is none.
func (d *demo) firstEvent(n int, method, node string) int64 {
	all := d.san.Events()[n:]
	i := slices.IndexFunc(all, func(e san.Event) bool {
		return e.Kind == san.KindAnswer && e.Method == method && e.Target == node && e.Volume == "disk-db" && e.Code == "OK"
	})
	if i < 0 {
		return 0
	}
	return all[i].Seq
}

// fenceByPerson gets the volume logs of host c for host b. Its plugin names no proof, so a person must say
// that host c is off.
func (d *demo) fenceByPerson() {
	claim := []string{"volctl", "volume", "claim", "logs", "--alloc", "web"}
	d.refused(d.b, 5, "only a person can prove that the host is off", append(claim, "--timeout", "4s")...)
	d.proof("the plugin has no fence, so the claim waits, and its words say why")

	d.print("  %s $ %s --timeout 60s &\n", d.b.Name, strings.Join(claim, " "))
	waiting := d.b.StartVolctl(append(claim[1:], "--timeout", "60s")...)
	d.await(d.b, "the waiting claim", func(out string) bool { return strings.Contains(out, "logs") }, "volctl", "claim", "list")
	d.refused(d.a, 2, "--powered-off", "volctl", "node", "fence", d.c.Name, "--reason", "no power in the rack")
	d.refused(d.a, 4, "alive", "volctl", "node", "fence", d.b.Name, "--powered-off", "--reason", "no power in the rack")
	d.proof("a person must have looked at the host, and cannot fence a host that is alive")

	d.run(d.a, "volctl", "node", "fence", d.c.Name, "--powered-off", "--reason", "no power in the rack")
	r := <-waiting
	d.output(r.Out + r.Err)
	d.check(r.Code == 0, "the claim on %s got the volume", d.b.Name)
	out := d.run(d.b, "cat", strings.TrimSpace(r.Out)+"/log")
	d.check(out == "logged on h3", "the data of %s is there", d.c.Name)
	out = d.run(d.b, "volctl", "node", "status", d.c.Name)
	d.check(strings.Contains(out, "no power in the rack") && showsTakeover(out, "logs", "person"),
		"the cluster has recorded who said that %s is off, and why", d.c.Name)
}

// returnHost boots host c again. The volumes db and logs were taken from it, and the volume site was not.
func (d *demo) returnHost() {
	d.print("  %s boots\n", d.c.Name)
	d.c.PowerOn()
	d.startEtcd(d.c)
	d.print("  %s $ volagent &\n", d.c.Name)
	d.c.Start("san", "plain")
	d.await(d.a, "the return of "+d.c.Name, func(out string) bool { return strings.Count(out, "ready") == 3 }, "volctl", "node", "list")
	d.proof("%s has undone what it lost, and is registered again; no command was necessary", d.c.Name)

	for _, id := range []string{"db", "logs"} {
		d.await(d.c, "the event of the loss", func(out string) bool { return strings.Contains(out, "hold-lost") }, "volctl", "events", "--volume", id, "--type", "hold-lost")
		d.refused(d.c, 5, fmt.Sprintf("held by host %q", d.b.Name), "volctl", "volume", "claim", id, "--alloc", "web", "--timeout", "1s")
	}
	d.await(d.c, "the claim on site", func(out string) bool {
		return strings.Contains(out, "site") && strings.Contains(out, "mounted") && !strings.Contains(out, "db") && !strings.Contains(out, "logs")
	}, "volctl", "claim", "list")
	d.proof("%s has lost its claims on db and logs, and kept the one on site, for which no host has waited", d.c.Name)
	d.check(!strings.Contains(d.c.Mounts(), d.last), "%s has no mount of db left", d.c.Name)
	d.check(d.run(d.b, "tail", "-n", "1", d.path+"/hello") == "written on h2 after the loss", "no write of %s has reached the volume since", d.c.Name)
}
