package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// collected returns metrics that use the given sources.
func collected(o Options) *Metrics {
	m := New()
	m.Collect(o)
	return m
}

// world holds the values that a Metrics reads in a test.
type world struct {
	plugins []Plugin
	records []volume.Record
	host    Host
}

func (w *world) metrics() *Metrics {
	return collected(Options{
		Version: "1.2.0", Started: time.Unix(1700000000, 5e8),
		Plugins: func() []Plugin { return w.plugins }, Records: func() []volume.Record { return w.records },
		Attempt: func(volume.Record) *volume.Attempt { return nil },
		Host:    func() Host { h := w.host; h.Commits, h.Failures = 42, 7; return h },
	})
}

func scrape(t testing.TB, m *Metrics) string {
	t.Helper()
	var b bytes.Buffer
	if err := m.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// expect checks that a scrape has all the given lines, and no line that begins with one of the
// texts in not.
func expect(t *testing.T, got string, lines []string, not ...string) {
	t.Helper()
	all := strings.Split(got, "\n")
	for _, want := range lines {
		if !slices.Contains(all, want) {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
	for _, n := range not {
		if slices.ContainsFunc(all, func(line string) bool { return strings.HasPrefix(line, n) }) {
			t.Errorf("a line %q… in\n%s", n, got)
		}
	}
}

func busy() *world {
	taken := volume.Record{Volume: volume.Volume{ID: "secret-name"}, Claims: map[string]volume.Claim{
		"a": {Alloc: "a", Wanted: true, State: volume.Pending}, "b": {Alloc: "b", State: volume.Unpublishing, Adopted: true},
	}}
	return &world{
		plugins: []Plugin{
			{ID: "ebs", Driver: "ebs.csi.aws.com", Type: "monolith", State: "ready", Restarts: 3},
			{ID: "nfs", Type: "controller", Instance: "b", State: "backing-off"},
			{ID: "nfs", Type: "node", State: "ready"},
			// A duplicate should never occur, but must not break the scrape.
			{ID: "nfs", Type: "node", State: "failed"},
		},
		records: []volume.Record{taken, {Volume: volume.Volume{ID: "free"}}},
	}
}

func TestScrape(t *testing.T) {
	w := busy()
	m := w.metrics()
	c := m.Calls("ebs")
	c.Began("Probe")
	c.Ended("Probe", "OK", 3*time.Millisecond)
	c.Began("NodeStageVolume")
	c.Began("NodeStageVolume")
	c.Ended("NodeStageVolume", "DeadlineExceeded", 2*time.Minute)
	got := scrape(t, m)
	expect(t, got, []string{
		`volagent_plugin_up{driver="ebs.csi.aws.com",instance="",plugin="ebs",type="monolith"} 1`,
		`volagent_plugin_up{driver="",instance="b",plugin="nfs",type="controller"} 0`,
		`volagent_plugin_up{driver="",instance="",plugin="nfs",type="node"} 1`,
		`volagent_plugin_state{instance="",plugin="ebs",state="ready",type="monolith"} 1`,
		`volagent_plugin_state{instance="",plugin="ebs",state="failed",type="monolith"} 0`,
		`volagent_plugin_state{instance="b",plugin="nfs",state="backing-off",type="controller"} 1`,
		`volagent_plugin_restarts_total{instance="",plugin="ebs",type="monolith"} 3`,
		`volagent_plugin_probe_duration_seconds_count{code="OK",plugin="ebs"} 1`,
		`volagent_plugin_probe_duration_seconds_bucket{code="OK",plugin="ebs",le="0.0025"} 0`,
		`volagent_plugin_probe_duration_seconds_bucket{code="OK",plugin="ebs",le="0.005"} 1`,
		`volagent_plugin_rpc_duration_seconds_sum{code="DeadlineExceeded",method="NodeStageVolume",plugin="ebs"} 120`,
		`volagent_plugin_rpcs_in_flight{method="NodeStageVolume",plugin="ebs"} 1`,
		`volagent_plugin_rpcs_in_flight{method="Probe",plugin="ebs"} 0`,
		`volagent_volumes{state="free"} 1`, `volagent_volumes{state="mounting"} 1`, `volagent_volumes{state="stuck"} 0`,
		`volagent_claims{state="pending"} 1`, `volagent_claims{state="unpublishing"} 1`, `volagent_claims{state="mounted"} 0`,
		`volagent_build_info{version="1.2.0"} 1`, `volagent_start_time_seconds 1.7000000005e+09`,
		`volagent_db_commits_total 42`, `volagent_db_commit_failures_total 7`, `volagent_db_up 1`, `volagent_db_lost_time_seconds 0`,
		`volagent_halted 0`, `volagent_draining 0`, `volagent_leftovers 0`, `volagent_adopted_claims 1`,
	}, `volagent_plugin_rpc_duration_seconds_count{code="OK",method="Probe"`)
	if strings.Contains(got, "secret-name") {
		t.Error("a volume's id is in it")
	}
	w.host = Host{Fault: errors.New("no space left"), Lost: time.Unix(1700000000, 0), Halted: true, Draining: true, Leftovers: 3}
	expect(t, scrape(t, m), []string{
		`volagent_db_up 0`, `volagent_db_lost_time_seconds 1.7e+09`, `volagent_halted 1`, `volagent_draining 1`, `volagent_leftovers 3`,
	})
}

// TestGone checks that the series of a removed plugin disappear. If the plugin returns, it starts
// with new series, even if an old call ends late.
func TestGone(t *testing.T) {
	w := busy()
	m := w.metrics()
	late, other := m.Calls("ebs"), m.Calls("nfs")
	for _, c := range []*Calls{late, other} {
		c.Began("NodeStageVolume")
		c.Began("NodeUnstageVolume")
		c.Ended("NodeUnstageVolume", "OK", time.Second)
	}
	ebs := w.plugins[0]
	w.plugins = w.plugins[1:]
	if got := scrape(t, m); strings.Contains(got, `plugin="ebs"`) || !strings.Contains(got, `volagent_plugin_rpcs_in_flight{method="NodeStageVolume",plugin="nfs"} 1`) {
		t.Errorf("without the plugin:\n%s", got)
	}
	late.Ended("NodeStageVolume", "Unavailable", time.Second)
	if got := scrape(t, m); strings.Contains(got, `plugin="ebs"`) {
		t.Errorf("after a late end:\n%s", got)
	}
	w.plugins = append(w.plugins, ebs)
	again := m.Calls("ebs")
	again.Began("NodeStageVolume")
	late.Began("NodeStageVolume")
	late.Ended("NodeStageVolume", "OK", time.Second)
	expect(t, scrape(t, m), []string{`volagent_plugin_rpcs_in_flight{method="NodeStageVolume",plugin="ebs"} 1`})

	// If a plugin returns while a scrape removes its series, the plugin keeps its counts.
	w.plugins = w.plugins[:1]
	list := m.o.Plugins
	m.o.Plugins = func() []Plugin { m.Calls("ebs").Began("NodeUnstageVolume"); return list() }
	m.prune()
	m.o.Plugins = list
	if _, kept := m.called["ebs"]; !kept {
		t.Error("what has just come back was dropped")
	}
}

// TestDocumented checks that docs/metrics.md names all metrics, and no others.
func TestDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	type entry struct{ kind, labels string }
	documented := map[string]entry{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(volagent_\\w+)` \\| (\\w+) \\| ([^|]*)\\|").FindAllStringSubmatch(string(page), -1) {
		labels := strings.Fields(strings.ReplaceAll(row[3], "`", ""))
		slices.Sort(labels)
		documented[row[1]] = entry{row[2], strings.Join(labels, " ")}
	}
	m := busy().metrics()
	o := withReports(m.o)
	o.Cluster = func() Cluster { return Cluster{Live: 1, Lanes: []Lane{{Name: "holds"}}} }
	m = collected(o)
	for _, method := range []string{"Probe", "NodeStageVolume"} {
		c := m.Calls("ebs")
		c.Began(method)
		c.Ended(method, "OK", 0)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	exported := map[string]entry{}
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		exported[f.GetName()] = entry{strings.ToLower(f.GetType().String()), strings.Join(labels, " ")}
	}
	if !maps.Equal(documented, exported) {
		t.Errorf("docs/metrics.md says\n%v\nand there is\n%v", documented, exported)
	}
}

// TestTogether makes calls, creates clients and scrapes in parallel, to find data races.
func TestTogether(t *testing.T) {
	w := busy()
	m := w.metrics()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 200 {
				c := m.Calls("ebs")
				c.Began("Probe")
				c.Ended("Probe", []string{"OK", "Unavailable"}[n%2], time.Duration(i)*time.Millisecond)
				if n%50 == 0 {
					if err := m.Write(io.Discard); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	expect(t, scrape(t, m), []string{
		`volagent_plugin_probe_duration_seconds_count{code="OK",plugin="ebs"} 800`,
		`volagent_plugin_probe_duration_seconds_count{code="Unavailable",plugin="ebs"} 800`,
		`volagent_plugin_rpcs_in_flight{method="Probe",plugin="ebs"} 0`,
	})
}

// TestCallCostsNoMemory checks that a call allocates no memory if an earlier call had the same
// method and the same gRPC code.
func TestCallCostsNoMemory(t *testing.T) {
	c := busy().metrics().Calls("ebs")
	if n := testing.AllocsPerRun(100, func() {
		c.Began("NodeStageVolume")
		c.Ended("NodeStageVolume", "OK", time.Millisecond)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCall(b *testing.B) {
	c := busy().metrics().Calls("ebs")
	b.ReportAllocs()
	for b.Loop() {
		c.Began("NodeStageVolume")
		c.Ended("NodeStageVolume", "OK", time.Millisecond)
	}
}

func BenchmarkScrape(b *testing.B) {
	for _, n := range []int{10, 10000} {
		b.Run(fmt.Sprintf("%d volumes", n), func(b *testing.B) {
			w := busy()
			for len(w.records) < n {
				w.records = append(w.records, w.records[0])
			}
			m := w.metrics()
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Write(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
