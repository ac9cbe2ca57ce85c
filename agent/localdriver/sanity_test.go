package localdriver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"

	"github.com/volagent/volagent/agent/localdriver/loopdev"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/sandbox"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// sanityKinds lists the kinds of volumes for which the suite runs.
var sanityKinds = []struct {
	name, access string
	size         int64
	params       map[string]string
	loops        bool
}{
	{"directory", "mount", 10 * mib, map[string]string{store.ParamType: store.TypeDirectory}, false},
	{"image", "mount", 16 * mib, map[string]string{store.ParamType: store.TypeImage, store.ParamFSType: "ext4"}, true},
	{"raw-block", "block", 16 * mib, map[string]string{store.ParamType: store.TypeImage}, true},
}

// sanityExplained gives the reason for each spec that the suite skips. A key is a text from the
// suite's message.
var sanityExplained = map[string]string{
	"Controller Publish, UnpublishVolume not supported": noAttach,
	"ControllerPublishVolume not supported":             noAttach,
	"ControllerUnpublishVolume not supported":           noAttach,
	"SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported":  "alpha, and the spec compares the answer's topology as a Go struct, which no message that was received is equal to",
	"pending": "the suite itself has put the spec off",
}

const noAttach = "a local volume is on its node always; nothing has to be attached"

// TestSanity runs the CSI community's sanity suite for every kind of volume. Ginkgo allows only one
// suite in a process, so the suite for all kinds runs in one separate process.
func TestSanity(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), sandbox.EnvMode+"="+modeSanity, sandbox.EnvBase+"="+sandbox.ShortDir(t))
	out, err := cmd.CombinedOutput()
	lines := regexp.MustCompile(`(?m)^sanity (\S+): run (\d+), passed (\d+), failed (\d+), skipped (\d+)$`).FindAllStringSubmatch(string(out), -1)
	for _, l := range lines {
		t.Log(l[0])
		if passed, err := strconv.Atoi(l[3]); err != nil || passed < 90 {
			t.Errorf("%s: only %s specs passed", l[1], l[3])
		}
	}
	stale := maps.Clone(sanityExplained)
	for _, l := range regexp.MustCompile(`(?m)^skipped (\S+): (.*) \[(.*)\]$`).FindAllStringSubmatch(string(out), -1) {
		why, ok := sanityExplained[l[3]]
		if !ok {
			t.Errorf("%s: skipped without an explanation: %s [%s]", l[1], l[2], l[3])
		}
		delete(stale, l[3])
		t.Logf("%s: skipped: %s [%s]: %s", l[1], l[2], l[3], why)
	}
	if len(stale) > 0 {
		t.Errorf("explained, but not skipped: %v", stale)
	}
	want := len(sanityKinds)
	if loopdev.CheckLoopControl() != nil {
		want = 1
	}
	if err != nil || len(lines) != want {
		t.Fatalf("the suite failed, with results for %d of %d kinds: %v\n%s", len(lines), want, err, out)
	}
}

type sanityResult struct{ failed bool }

func (r *sanityResult) Fail() { r.failed = true }

func runSanitySuite() int {
	base := os.Getenv(sandbox.EnvBase)
	var names []string
	for _, k := range sanityKinds {
		if k.loops && loopdev.CheckLoopControl() != nil {
			continue
		}
		dir := filepath.Join(base, k.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			fmt.Println(err)
			return 1
		}
		names = append(names, k.name)
		cfg := sanity.NewTestConfig()
		cfg.Address = "unix://" + filepath.Join(dir, "csi.sock")
		cfg.TargetPath, cfg.StagingPath = filepath.Join(dir, "mnt"), filepath.Join(dir, "stg")
		cfg.TestVolumeSize, cfg.TestVolumeAccessType, cfg.TestVolumeParameters = k.size, k.access, k.params
		cfg.TestVolumeExpandSize, cfg.TestVolumeMutableParameters = 2*k.size, map[string]string{request.ParamQuota: request.NoQuota}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- Run(ctx, Options{Endpoint: cfg.Address, NodeID: "node-1", StateDir: filepath.Join(dir, "state"), Version: "test"})
		}()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				fmt.Println(err)
			}
		}()
		ginkgo.Describe(k.name, func() { sanity.GinkgoTest(&cfg) })
	}
	ginkgo.ReportAfterSuite("counts", func(r ginkgo.Report) {
		fmt.Println()
		for _, name := range names {
			printCounts(name, r.SpecReports)
		}
	})
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	reporter.NoColor = true
	result := &sanityResult{}
	if !ginkgo.RunSpecs(result, "CSI sanity", suite, reporter) || result.failed {
		return 1
	}
	return 0
}

func printCounts(name string, specs types.SpecReports) {
	count := map[types.SpecState]int{}
	for _, s := range specs {
		if len(s.ContainerHierarchyTexts) > 0 && s.ContainerHierarchyTexts[0] == name {
			count[s.State]++
			switch s.State {
			case types.SpecStateSkipped:
				fmt.Printf("skipped %s: %s [%s]\n", name, s.FullText(), s.Failure.Message)
			case types.SpecStatePending:
				fmt.Printf("skipped %s: %s [pending]\n", name, s.FullText())
			}
		}
	}
	passed, skipped := count[types.SpecStatePassed], count[types.SpecStateSkipped]+count[types.SpecStatePending]
	failed := 0
	for state, n := range count {
		if state.Is(types.SpecStateFailureStates) {
			failed += n
		}
	}
	fmt.Printf("sanity %s: run %d, passed %d, failed %d, skipped %d\n", name, passed+failed, passed, failed, skipped)
}
