package localdriver

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/sandbox"
)

// unprivileged is the user id of an ordinary user.
const unprivileged = 65534

// TestWithoutRoot repeats the directory tests as an ordinary user, in a user namespace and a mount
// namespace.
func TestWithoutRoot(t *testing.T) {
	if sandbox.InUserNamespace(t) {
		t.Skip("all tests run without root already")
	}
	dir := sandbox.ShortDir(t)
	sandbox.Must(t, os.Chown(dir, unprivileged, unprivileged))
	sandbox.Must(t, os.Chmod(os.Getenv(sandbox.EnvBase), 0o755))
	cmd := exec.Command("/proc/self/exe", "-test.v",
		"-test.run=^(TestDirectory|TestSnapshotDirectory|TestSnapshotOfDirectoryInUse|TestCopyStaysInside|TestGroupSnapshot|TestSlowCopy|TestImageNeedsLoops|TestReadOnly|TestDeleteInUse|TestPlantedMount|TestRestart|TestMountFlags|TestSizeIsAPromise|TestTypeLeftOut)$")
	cmd.Env = append(os.Environ(), sandbox.EnvMode+"="+sandbox.ModeTests, sandbox.EnvBase+"="+dir)
	cmd.SysProcAttr = sandbox.Namespaces(unprivileged, unprivileged)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestDirectory ") || !strings.Contains(string(out), "--- PASS: TestImageNeedsLoops ") {
		t.Fatalf("the tests failed without root: %v\n%s", err, out)
	}
}

func TestImageNeedsLoops(t *testing.T) {
	if !sandbox.InUserNamespace(t) {
		t.Skip("root has loop devices; TestWithoutRoot runs this one")
	}
	b := newBench(t)
	_, err := b.CreateVolume(background(), createReq("img", 16*mib, image("ext4"), mountCap(writer, "")))
	sandbox.WantCode(t, err, codes.FailedPrecondition, "loop", "root", `type "directory"`)
	if got := b.listed(); len(got) != 0 {
		t.Errorf("listed %v", got)
	}
}
