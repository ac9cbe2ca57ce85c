package cluster_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness/lab"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// TestCopiedHost copies a host that runs, with the state of its agent, and starts the copy. While the
// original is alive, the copy does not register. While the original is off, the copy is recognised by its
// DMI UUID, or by the CSI node id of its plugin. The copy makes no call for a volume, and the original
// keeps its claim. (I1, I3)
func TestCopiedHost(t *testing.T) {
	t.Parallel()
	f := newField(t, 3)
	original, twin := f.Hosts[0], f.Hosts[2]
	for _, id := range []string{"db", "other"} {
		shareOn(original.Host, f.san, id, mode("single-node-multi-writer"))
	}
	path := claim(original.Host, "db", "web")
	original.MustRun("sh", "-c", `echo kept > "$1" && sync`, "sh", filepath.Join(path, "file"))
	twin.Must(twin.Signal(15))
	own, data := twin.MachineID, filepath.Join(original.Dir, "d")
	twin.OmitFlags = append(twin.OmitFlags, "--data-dir")
	twin.MoreArgs = []string{"--node-id", original.Name, "--data-dir", data}

	for _, c := range []struct {
		name       string
		dmi        string
		beside     *lab.Host // the copy is a container of this host's machine
		words      string    // of the refusal while the original is off
		newMachine bool
		early      bool // the copy is made before the claim
		old        bool // the agent of the original is restarted after the copy
		empty      bool // the copy has no state of the agent
	}{
		{name: "a virtual machine", dmi: twin.ProductUUID, words: "its DMI product UUID differs"},
		{name: "a virtual machine without DMI", words: `the CSI node id of plugin "san" on host "h1" was "h1", and is now "h3"`},
		{name: "a container of the same machine", dmi: original.ProductUUID, beside: original, early: true, words: "the CSI node id of plugin"},
		{name: "an old copy of a virtual machine", old: true, words: "the CSI node id of plugin"},
		{name: "a virtual machine without the state", empty: true, words: "the CSI node id of plugin"},
		{name: "a machine with a new machine id", newMachine: true, words: "its machine id differs"},
	} {
		twin.PowerOff()
		twin.MachineID, twin.ProductUUID, twin.Beside = original.MachineID, c.dmi, c.beside
		if c.newMachine {
			twin.MachineID = own
		}
		twin.PowerOn()
		if c.early {
			original.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
		}
		original.Freeze()
		twin.MustRun("sh", "-c", `rm -rf "$2" && cp -a "$1" "$2" && mount --bind "$2" "$1"`, "sh", data, filepath.Join(twin.Dir, "copy"))
		if c.empty {
			twin.MustRun("sh", "-c", `rm -r "$1"/*`, "sh", data)
		}
		original.Thaw()
		if c.early {
			claim(original.Host, "db", "web", "--timeout", "60s")
		}
		if c.old {
			original.Kill()
			original.Start("san")
		}

		mark := len(f.san.Events())
		twin.Start("san")
		awaitWords(twin, c.name+" beside the original", `another agent is registered as host "h1", and is alive`)
		original.MustRun("sh", "-c", `echo more > "$1"`, "sh", filepath.Join(path, "more"))
		original.PowerOff()
		awaitWords(twin, c.name+" without the original", c.words)
		twin.Kill()
		twin.Start("san") // and the same if the agent starts while the original is off
		awaitWords(twin, c.name+" after a restart", c.words)
		for _, e := range f.san.Events()[mark:] {
			if e.Kind == san.KindCall && e.Node == twin.Name && e.Volume != "" {
				t.Errorf("%s makes a call for a volume: %s", c.name, e)
			}
		}

		twin.Kill()
		original.PowerOn()
		original.Start("san")
		original.Await("the mount of the original", func() bool { return original.Run("cat", filepath.Join(path, "file")).Out == "kept\n" })
		f.awaitAgreement(c.name, map[string]string{"db": "h1"})
	}
	original.Volctl("volume", "detach", "db", "web", "--timeout", "60s")
	f.awaitAgreement("the last detach", map[string]string{})
}

// awaitWords waits until a host says why it is not registered in the cluster.
func awaitWords(h *lab.Host, when, words string) {
	h.T.Helper()
	h.Await(when+": "+words, func() bool { return strings.Contains(h.Volctl("node", "status"), words) })
}
