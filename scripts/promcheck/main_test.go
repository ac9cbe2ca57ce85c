package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestShipped(t *testing.T) {
	if err := run([]string{root}, io.Discard); err != nil {
		t.Error(err)
	}
	if run(nil, io.Discard) == nil || run([]string{t.TempDir()}, io.Discard) == nil {
		t.Error("nothing to check is well")
	}
}

// fault describes a mistake that the test makes in a file by replacing was with is. The check must
// then report an error that contains want.
type fault struct{ was, is, want string }

func plant(t *testing.T, text string, faults map[string]fault, check func([]byte) (int, error)) {
	t.Helper()
	if n, err := check([]byte(text)); err != nil || n == 0 {
		t.Fatalf("%d are correct: %v", n, err)
	}
	for name, f := range faults {
		bad := strings.Replace(text, f.was, f.is, 1)
		if bad == text {
			t.Errorf("%s: there is no %q to replace", name, f.was)
		}
		if _, err := check([]byte(bad)); err == nil || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%s: got %v, want %q", name, err, f.want)
		}
	}
}

func shipped(t *testing.T) *catalog {
	t.Helper()
	c, err := newCatalog([]byte(read(t, "docs/metrics.md")), []byte(read(t, "docs/cli.md")))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRules(t *testing.T) {
	plant(t, read(t, "packaging/prometheus/volagent.rules.yaml"), map[string]fault{
		"a field":         {"expr: volagent_halted", "exprs: volagent_halted", "field exprs not found"},
		"syntax":          {"volagent_halted == 1", "volagent_halted == = 1", "parse error"},
		"a metric":        {"expr: volagent_halted", "expr: volagent_haltet", `no metric "volagent_haltet"`},
		"a label":         {`volagent_volumes{state="stuck"}`, `volagent_volumes{status="stuck"}`, `no label "status"`},
		"a grouping":      {"sum by (instance, volume,", "sum by (instance, volum,", `no label "volum"`},
		"a match":         {"unless on (instance,", "unless on (host,", `no label "host"`},
		"ignoring":        {"ignoring (kind) volagent_volume_bytes{kind=\"total\"} < 0.1", "ignoring (sort) volagent_volume_bytes{kind=\"total\"} < 0.1", `no label "sort"`},
		"no match":        {"/ ignoring (kind) volagent_volume_bytes{kind=\"total\"} < 0.1", "/ ignoring (kind) volagent_volumes < 0.1", "do not match"},
		"a gauge's rate":  {"increase(volagent_plugin_restarts_total[1h])", "increase(volagent_db_up[1h])", "no counter"},
		"a duration":      {"for: 5m", "for: 5 minutes", "for: unknown unit"},
		"no duration":     {"        for: 5m\n", "", "for: empty duration"},
		"severity":        {"severity: critical", "severity: grave", "not a severity"},
		"no summary":      {"summary:", "title:", "not a summary"},
		"alert's label":   {"{{ $labels.instance }}", "{{ $labels.host }}", `no label "host"`},
		"dropped label":   {"{{ $labels.volume }} of {{ $labels.instance }} is {{ $labels.severity }}", "{{ $labels.by }}", `no label "by"`},
		"a template":      {"{{ $labels.instance }}", "{{ $labels.instance ", "template"},
		"a function":      {"humanizePercentage", "percentage", `function "percentage" not defined`},
		"no command":      {"`systemctl status volagent` and `journalctl -u volagent`. If it runs, see whether metrics_address is\n            served: `volctl status`", "look", "no `command`"},
		"unknown command": {"`volctl status` says why", "`volctl node state` says why", `no command "volctl node state"`},
		"twice":           {"alert: VolagentHalted", "alert: VolagentDown", "VolagentDown is defined twice"},
		"a name":          {"alert: VolagentHalted", "alert: halted", "VolagentSomething"},
		"no group's name": {"name: volagent", "name: ''", "no name of its own"},
	}, shipped(t).rules)
	for _, text := range []string{"", "groups: []\n", "groups:\n  - name: x\n    interval: often\n"} {
		if n, err := shipped(t).rules([]byte(text)); err == nil {
			t.Errorf("%q: %d are correct", text, n)
		}
	}
}

func TestDashboard(t *testing.T) {
	plant(t, read(t, "packaging/grafana/volagent.json"), map[string]fault{
		"a field":           {`"schemaVersion"`, `"schemaversions"`, "unknown field"},
		"no JSON":           {`"panels"`, `panels`, "invalid character"},
		"old schema":        {`"schemaVersion": 39`, `"schemaVersion": 16`, "at least 38"},
		"an id twice":       {`"id": 3,`, `"id": 2,`, "no id, or no title"},
		"a title twice":     {`"title": "Restarts"`, `"title": "Calls"`, "no id, or no title"},
		"overlap":           {`"x": 4,`, `"x": 3,`, "overlap"},
		"outside":           {`"w": 4,`, `"w": 40,`, "24 columns"},
		"syntax":            {`sum by (state) (volagent_volumes`, `sum by (state (volagent_volumes`, "parse error"},
		"a metric":          {`sum(volagent_leftovers`, `sum(volagent_debt`, `no metric "volagent_debt"`},
		"legend":            {`"legendFormat": "{{state}}"`, `"legendFormat": "{{stat}}"`, `no label "stat"`},
		"an unknown name":   {`[$__rate_interval]`, `[$__rate]`, "no variable $__rate"},
		"another source":    {`"uid": "${datasource}"`, `"uid": "prom"`, "another datasource"},
		"panel's source":    {"\"description\": \"Claims that are held, in whatever state.\",\n      \"datasource\": {\n        \"type\": \"prometheus\"", "\"description\": \"Claims that are held, in whatever state.\",\n      \"datasource\": {\n        \"type\": \"loki\"", "another datasource"},
		"all hosts":         {`volagent_draining{instance=~\"$host\"}`, `volagent_draining`, "chosen hosts"},
		"no unit":           {`"unit": "s"`, `"decimals": 1`, "no unit"},
		"refId":             {`"refId": "B"`, `"refId": "A"`, `refId "A"`},
		"variable's metric": {`"query": "label_values(volagent_build_info, instance)"`, `"query": "label_values(volagent_build, instance)"`, `no metric "volagent_build"`},
		"variable's label":  {`"query": "label_values(volagent_build_info, instance)"`, `"query": "label_values(volagent_build_info, host)"`, `no label "host"`},
		"variable's query":  {`"query": "label_values(volagent_build_info, instance)"`, `"query": "label_values(instance)"`, "is not label_values"},
	}, shipped(t).dashboard)
}
