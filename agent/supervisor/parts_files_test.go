package supervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/supervisor"
	"github.com/volagent/volagent/volmgr/call"
)

// TestPartFiles checks which plugin files can be used together. If files conflict, the agent must
// use the first valid file, and return an error for each other file.
func TestPartFiles(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files []string // the type and the instance of each file
		// the path of the bad file and its error message; empty if all files are valid
		bad   string
		parts int
	}{
		{"node and two controllers", []string{"node", "controller", "controller/b"}, "", 3},
		{"controllers alone", []string{"controller/a", "controller/b"}, "", 2},
		{"two nodes", []string{"node", "node/b", "controller"}, `1.yaml: plugin "fake" has its node part in 0.yaml already`, 2},
		{"two alike", []string{"node", "controller/a", "controller/a"}, `2.yaml: plugin "fake" with the same type and instance is defined in 1.yaml already`, 2},
		{"a monolith beside", []string{"controller", "monolith"}, `1.yaml: plugin "fake" is defined in 0.yaml already; a monolith is node and controller in one`, 1},
		{"beside a monolith", []string{"monolith", "node"}, `1.yaml: plugin "fake" is defined in 0.yaml already; a monolith is node and controller in one`, 1},
		{"no type beside", []string{"controller", ""}, `1.yaml: plugin "fake" is defined in 0.yaml already; several parts of one plugin need a type each`, 1},
		{"beside no type", []string{"", "controller"}, `1.yaml: plugin "fake" is defined in 0.yaml already, without a type; several parts`, 1},
		{"a bad instance", []string{"node", "controller/a b"}, `instance "a b" is not 1 to 48 characters`, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			for i, f := range tt.files {
				kind, instance, _ := strings.Cut(f, "/")
				b.part(fmt.Sprintf("%d.yaml", i), kind, instance, "health: {interval: 1h}\n")
			}
			b.start()
			await(t, "the parts", func() bool {
				st := b.status("fake")
				ready := 0
				for _, p := range st.Parts {
					if p.State == supervisor.Ready {
						ready++
					}
				}
				return ready == tt.parts && len(st.Parts) == tt.parts
			})
			var bad []string
			for _, st := range b.sup.Statuses() {
				if st.ID != "fake" {
					bad = append(bad, strings.ReplaceAll(st.Reason, b.dir+"/etc/", ""))
				}
			}
			if tt.bad == "" && len(bad) > 0 || tt.bad != "" && (len(bad) != 1 || !strings.Contains(bad[0], tt.bad)) {
				t.Errorf("bad files: %q, want %q", bad, tt.bad)
			}
		})
	}
}

// TestPartsComeAndGo checks that a node part or a controller can be added to a plugin that has only
// a controller or a monolith. If possible, the existing part must keep its process.
func TestPartsComeAndGo(t *testing.T) {
	b := newBench(t)
	const never = "health: {interval: 1h}\n"
	b.part("a.yaml", "controller", "a", never)
	b.start()
	alone := b.partIs("controller a", supervisor.Ready)
	if alone.Socket != b.dir+"/r/plugins/fake/csi.sock" {
		t.Errorf("alone it has socket %s", alone.Socket)
	}
	b.part("b.yaml", "controller", "b", never)
	b.reload()
	b.partIs("controller b", supervisor.Ready)
	if now := b.partIs("controller a", supervisor.Ready); now.PID != alone.PID || len(b.starts()) > 0 {
		t.Errorf("it was process %d, and is %+v", alone.PID, now)
	}
	b.stop()
	b.start()
	if now := b.partIs("controller a", supervisor.Ready); now.PID != alone.PID {
		t.Errorf("after a restart of the agent: %+v", now)
	}
	b.part("node.yaml", "node", "", never)
	b.reload()
	node := b.partIs("node", supervisor.Ready)
	b.partIs("controller a", supervisor.Ready)
	b.partIs("controller b", supervisor.Ready)
	if node.Socket != alone.Socket || len(b.status("fake").Parts) != 3 {
		t.Errorf("%+v", b.status("fake"))
	}
	await(t, "the end of what was alone", func() bool { return !alive(alone.PID) })
	b.inUse.Store(true)
	must(t, os.Remove(filepath.Join(b.dir, "etc/node.yaml")))
	must(t, os.Remove(filepath.Join(b.dir, "etc/b.yaml")))
	b.reload()
	await(t, "one controller's end", func() bool { return len(b.status("fake").Parts) == 2 })
	if now := b.partIs("node", supervisor.Ready); now.PID != node.PID || !strings.Contains(now.Pending, "was removed") {
		t.Errorf("the node part under volumes: %+v", now)
	}
}

// TestMonolithComesApart checks a monolith whose file changes to the file of a node part. While
// volumes use the part, it must provide both services beside a new controller. When no volume uses
// the part, it must become the node part.
func TestMonolithComesApart(t *testing.T) {
	b := newBench(t)
	b.part("m.yaml", "monolith", "", "health: {interval: 1h}\n")
	b.start()
	was := b.partIs("monolith", supervisor.Ready)
	if v := b.sup.View("fake"); v.Apart != nil || !v.Ready {
		t.Errorf("alone: %+v", v)
	}
	b.inUse.Store(true)
	b.part("m.yaml", "node", "", "health: {interval: 1h}\n")
	b.part("a.yaml", "controller", "a", "health: {interval: 1h}\n")
	b.reload()
	a := b.partIs("controller a", supervisor.Ready)
	asked := map[int]int{}
	for i := range 4 {
		pid, err := b.publish(fmt.Sprint("v", i))
		must(t, err)
		asked[pid]++
	}
	if asked[a.PID] != 2 || asked[was.PID] != 2 {
		t.Errorf("calls by process: %v, want 2 each of %d and %d", asked, a.PID, was.PID)
	}
	if now := b.partIs("monolith", supervisor.Ready); now.PID != was.PID || now.Wanted["type"] != "node" {
		t.Errorf("under volumes: %+v", now)
	}
	b.inUse.Store(false)
	b.sup.Released("fake")
	if now := b.partIs("node", supervisor.Ready); now.PID == was.PID || now.Socket != was.Socket {
		t.Errorf("as the node part: %+v", now)
	}
}

// TestPartsOfOneDriver checks a part that reports a different driver than the other parts. The
// agent must refuse this part until it reports the right driver.
func TestPartsOfOneDriver(t *testing.T) {
	b := newBench(t)
	b.part("node.yaml", "node", "", "health: {interval: 1h}\n")
	fake := b.part("a.yaml", "controller", "a", "health: {interval: 1h}\n")
	must(t, os.WriteFile(string(fake)+"/driver", []byte("other.test"), 0o600))
	must(t, os.Rename(b.dir+"/etc/a.yaml", b.dir+"/a.yaml"))
	b.start()
	b.partIs("node", supervisor.Ready)
	must(t, os.Rename(b.dir+"/a.yaml", b.dir+"/etc/a.yaml"))
	b.reload()
	st := b.partIs("controller a", supervisor.Failed)
	if want := `driver "other.test" answers, and the part "node" of plugin "fake" is driver "fake.test"`; !strings.Contains(st.Reason, want) {
		t.Errorf("reason %q", st.Reason)
	}
	if v := b.sup.View("fake"); v.Ready || v.State != "failed" || v.Info.Driver != "fake.test" || !v.ReadyFor(call.NodePublish) || !v.Apart.Controller.Unasked {
		t.Errorf("view %+v", v)
	}
	must(t, os.Remove(string(fake)+"/driver"))
	must(t, b.sup.Start("fake"))
	b.partIs("controller a", supervisor.Ready)
}

// TestPartsDriverPutRight checks a part that was refused because another part reported a wrong
// driver. When the other part reports the right driver, the agent must try the refused part again.
func TestPartsDriverPutRight(t *testing.T) {
	b := newBench(t)
	fake := b.part("a.yaml", "controller", "a", "health: {interval: 1h}\n")
	must(t, os.WriteFile(string(fake)+"/driver", []byte("other.test"), 0o600))
	silent := b.part("b.yaml", "controller", "b", "health: {interval: 1h}\n")
	must(t, os.WriteFile(string(silent)+"/silent", nil, 0o600))
	b.start()
	b.partIs("controller a", supervisor.Ready)
	b.part("node.yaml", "node", "", "health: {interval: 1h}\n")
	b.reload()
	st := b.partIs("node", supervisor.Failed)
	if want := `driver "fake.test" answers, and the part "controller a" of plugin "fake" is driver "other.test"`; !strings.Contains(st.Reason, want) {
		t.Errorf("reason %q", st.Reason)
	}
	must(t, os.Remove(string(fake)+"/driver"))
	must(t, b.sup.Restart("fake", false, supervisor.Only{Instance: "a"}))
	b.partIs("node", supervisor.Ready)
}

// TestPartsBadFile checks a bad file of one part. If the part already has a definition, it must
// keep this definition. Otherwise it must be failed. The other parts must not be affected.
func TestPartsBadFile(t *testing.T) {
	b := trio(t, "health: {interval: 1h}\n")
	was := b.status("fake")
	b.file("b.yaml", "id: [\n")
	b.reload()
	now := b.partIs("controller b", supervisor.Ready)
	if now.PID != was.Parts[2].PID || !strings.Contains(now.Pending, "b.yaml:1: ") {
		t.Errorf("the part: %+v", now)
	}
	if st := b.status("fake"); st.State != supervisor.Ready || !strings.HasPrefix(st.Pending, "controller b: its file cannot be used") || len(b.sup.Statuses()) != 1 {
		t.Errorf("the plugin: %+v", st)
	}
	b.file("b.yaml", "id: fake\ntype: monolith\nsocket: /nobody\n")
	b.reload()
	if now := b.partIs("controller b", supervisor.Ready); now.PID != was.Parts[2].PID || !strings.Contains(now.Pending, "is defined in "+b.dir+"/etc/a.yaml already; a monolith") {
		t.Errorf("the part: %+v", now)
	}
}

// TestPartsSockets checks that two parts cannot share a socket, even if another program runs one of
// the parts.
func TestPartsSockets(t *testing.T) {
	b := newBench(t)
	b.part("node.yaml", "node", "", "")
	b.file("stolen.yaml", "id: fake\ntype: controller\nsocket: "+b.dir+"/r/plugins/fake/csi.sock\n")
	b.start()
	b.partIs("node", supervisor.Ready)
	st := b.await("stolen.yaml", supervisor.Failed)
	if !strings.Contains(st.Reason, "/r/plugins/fake/csi.sock is another part's already, in "+b.dir+"/etc/node.yaml") {
		t.Errorf("reason %q", st.Reason)
	}
}
