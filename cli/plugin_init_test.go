package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/spec"
)

func TestPluginInit(t *testing.T) {
	t.Chdir(t.TempDir())
	none := run{ctx: t.Context(), socket: "/nonexistent"} // the command works without an agent
	for _, name := range spec.PluginExamples() {
		expect(t, none.volctl("plugin", "init", name), 0, "wrote "+name+".yaml; edit it, then: volctl plugin register "+name+".yaml\n", "")
		written, err := os.ReadFile(name + ".yaml")
		if text, _ := spec.PluginExample(name); err != nil || string(written) != text {
			t.Errorf("%s: %v, wrote %q", name, err, written)
		}
	}
	expect(t, none.volctl("plugin", "init", "nfs"), 4, "", "cannot write \"nfs.yaml\": the file exists\nhint: volctl plugin init nfs ANOTHER-FILE\n")
	expect(t, none.volctl("plugin", "init", "nfs", "other.yaml", "-q"), 0, "other.yaml\n", "")
	expect(t, none.volctl("plugin", "init", "nfs", "no/such/dir"), 1, "", "no such file or directory")
	expect(t, none.volctl("plugin", "init"), 0, "wrote plugin.yaml; edit it, then: volctl plugin register plugin.yaml\n", "")
	expect(t, none.volctl("plugin", "init"), 4, "", "hint: volctl plugin init - prints it")
	general, err := os.ReadFile("plugin.yaml")
	if err != nil || !strings.Contains(string(general), "id: mine") {
		t.Errorf("%v, the general one is %q", err, general)
	}
	expect(t, none.volctl("plugin", "init", "-"), 0, string(general), "")
	expect(t, none.volctl("plugin", "init", "ebss"), 2, "", "volctl: there is no plugin file of \"ebss\": there are cephfs, ebs, ")
	expect(t, none.volctl("plugin", "init", "ebss"), 2, "", "hint: did you mean ebs?")
	expect(t, none.volctl("plugin", "init", "zfs-iscsi-thing"), 2, "", "hint: volctl plugin init shows all keys")
	if _, err := os.Stat("ebss.yaml"); err == nil {
		t.Error("a file was written for a name that there is none of")
	}
}
