package plugins_test

import (
	"cmp"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const tree = "../../../.." // the root directory of the project

// tableRow is one row of a table in docs/csi.md.
type tableRow struct {
	name, secrets string // only rows for calls have secrets
	used, bundled bool
	tests         []string
}

// csiTables returns the rows of all tables in docs/csi.md. The keys are the headings above the
// tables.
func csiTables(t *testing.T) map[string][]tableRow {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(tree, "docs/csi.md"))
	if err != nil {
		t.Fatal(err)
	}
	tables, heading := map[string][]tableRow{}, ""
	for line := range strings.Lines(string(raw)) {
		if after, ok := strings.CutPrefix(line, "### "); ok {
			heading = strings.TrimSpace(after)
		}
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != 6 && len(cells) != 4 || cells[2] == "" {
			t.Fatalf("not understood: %s", line)
		}
		row := tableRow{name: strings.Trim(cells[0], "`"), used: yesNo(t, cells[1], line)}
		if len(cells) == 6 {
			row.secrets, row.bundled = cells[3], yesNo(t, cells[4], line)
		}
		if last := cells[len(cells)-1]; last != "–" {
			row.tests = strings.Fields(last)
		}
		tables[heading] = append(tables[heading], row)
	}
	return tables
}

func yesNo(t *testing.T, cell, line string) bool {
	t.Helper()
	if cell != "yes" && cell != "no" {
		t.Fatalf("%q is neither yes nor no: %s", cell, line)
	}
	return cell == "yes"
}

// usedCalls returns the calls that docs/csi.md marks as sent by the agent. If bundled is true, it
// returns only the calls that the bundled driver answers.
func usedCalls(t *testing.T, bundled bool) []string {
	t.Helper()
	tables := csiTables(t)
	var names []string
	for service := range specServices() {
		for _, row := range tables[service] {
			if row.used && (row.bundled || !bundled) {
				names = append(names, row.name)
			}
		}
	}
	return slices.Sorted(slices.Values(names))
}

// specServices returns the services of the CSI specification by name.
func specServices() map[string]grpc.ServiceDesc {
	return map[string]grpc.ServiceDesc{
		"Identity": csi.Identity_ServiceDesc, "Controller": csi.Controller_ServiceDesc, "GroupController": csi.GroupController_ServiceDesc,
		"SnapshotMetadata": csi.SnapshotMetadata_ServiceDesc, "Node": csi.Node_ServiceDesc,
	}
}

// specCapabilities contains the capabilities of the CSI specification. Its keys are the headings of
// the tables in docs/csi.md.
var specCapabilities = map[string]map[int32]string{
	"Of the plugin": csi.PluginCapability_Service_Type_name, "Volume expansion": csi.PluginCapability_VolumeExpansion_Type_name,
	"Of the controller": csi.ControllerServiceCapability_RPC_Type_name, "Of the group controller": csi.GroupControllerServiceCapability_RPC_Type_name,
	"Of the node": csi.NodeServiceCapability_RPC_Type_name,
}

// TestCSITable compares docs/csi.md with the code. The page must list every call and capability of
// the CSI specification exactly once. It must mark exactly the calls that the agent sends and the
// calls that the bundled driver implements. Every test that the page names must exist, and each row
// that is in use must name a test.
func TestCSITable(t *testing.T) {
	tables, known, sent, bundled := csiTables(t), knownTests(t), sentCalls(t), bundledCalls(t)
	want := map[string][]string{}
	for service, desc := range specServices() {
		for _, m := range desc.Methods {
			want[service] = append(want[service], m.MethodName)
		}
		for _, m := range desc.Streams {
			want[service] = append(want[service], m.StreamName)
		}
	}
	for heading, names := range specCapabilities {
		want[heading] = slices.Collect(maps.Values(names))
	}
	for heading, rows := range tables {
		var got []string
		for _, row := range rows {
			got = append(got, row.name)
			if row.used && len(row.tests) == 0 {
				t.Errorf("%s is used, and no test is named", row.name)
			}
			for _, name := range row.tests {
				if !known[name] {
					t.Errorf("%s: there is no test %s", row.name, name)
				}
			}
		}
		slices.Sort(got)
		slices.Sort(want[heading])
		if !slices.Equal(got, want[heading]) {
			t.Errorf("%s has\n%v\nand the spec\n%v", heading, got, want[heading])
		}
	}
	if len(tables) != len(want) {
		t.Errorf("%d tables of %d: %v", len(tables), len(want), slices.Sorted(maps.Keys(tables)))
	}
	for service := range specServices() {
		for _, row := range tables[service] {
			if row.used != (sent[row.name] != "") {
				t.Errorf("%s: sent is %v, and it is called by %q", row.name, row.used, sent[row.name])
			}
			if row.bundled != (row.used && bundled[row.name]) {
				t.Errorf("%s: the bundled driver gets it is %v; sent is %v, and the driver has it: %v", row.name, row.bundled, row.used, bundled[row.name])
			}
			if hasSecrets(service, row.name) != (row.secrets != "–") {
				t.Errorf("%s: its secrets are %q, and it has a field for them: %v", row.name, row.secrets, hasSecrets(service, row.name))
			}
		}
	}
}

// hasSecrets reports whether the request of a call has a field for secrets.
func hasSecrets(service, method string) bool {
	m := csi.File_csi_proto.Services().ByName(protoreflect.Name(service)).Methods().ByName(protoreflect.Name(method))
	return m != nil && m.Input().Fields().ByName("secrets") != nil
}

// goFiles calls the function do for each Go file below the given directories of the project, except
// test files.
func goFiles(t *testing.T, do func(path string), dirs ...string) {
	t.Helper()
	eachFile(t, func(path string) {
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			do(path)
		}
	}, dirs...)
}

func eachFile(t *testing.T, do func(path string), dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(tree, dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				do(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// knownTests returns all tests of the project as "directory.TestName".
func knownTests(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	eachFile(t, func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllStringSubmatch(string(raw), -1) {
			known[filepath.Base(filepath.Dir(path))+"."+m[1]] = true
		}
	}, "agent", "cli", "cmd", "statedb", "volmgr")
	return known
}

// bundledCalls returns the calls that the bundled driver implements.
func bundledCalls(t *testing.T) map[string]bool {
	t.Helper()
	calls := map[string]bool{}
	goFiles(t, func(path string) {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range driverMethod.FindAllStringSubmatch(string(raw), -1) {
			calls[m[1]] = true
		}
	}, "agent/localdriver")
	return calls
}

var (
	driverMethod = regexp.MustCompile(`(?m)^func \(d \*driver\) ([A-Z]\w+)\(`)
	clientMethod = regexp.MustCompile(`^func \(c (?:\*Client|nodeCalls|controllerCalls)\) (\w+)\((?:ctx context.Context, r call\.(\w+)\))?`)
	pluginCall   = regexp.MustCompile(`\bc\.(?:controller|node|identity|groups)\.(\w+)`)
	ownCall      = regexp.MustCompile(`\bc\.(\w+)\(`)
	anyCall      = regexp.MustCompile(`\w\.(\w+)[({]`)
)

// sentCalls returns the calls that the agent sends, each with a file that sends the call. A call
// counts as sent if code outside the CSI client creates a request for the call or uses a client
// method that sends it.
func sentCalls(t *testing.T) map[string]string {
	t.Helper()
	by, inner := map[string][]string{}, map[string][]string{} // maps requests and client methods to their CSI calls, and to the other client methods that they call
	code := func(path string, do func(line string)) {
		t.Helper()
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			if !strings.HasPrefix(strings.TrimSpace(line), "//") {
				do(line)
			}
		}
	}
	goFiles(t, func(path string) {
		method := ""
		code(path, func(line string) {
			if m := clientMethod.FindStringSubmatch(line); m != nil {
				method = cmp.Or(m[2], m[1])
			}
			for _, m := range pluginCall.FindAllStringSubmatch(line, -1) {
				by[method] = append(by[method], m[1])
			}
			for _, m := range ownCall.FindAllStringSubmatch(line, -1) {
				inner[method] = append(inner[method], m[1])
			}
		})
	}, "volmgr/csiclient")
	for method, names := range inner { // such as Info, which calls askNode
		for _, name := range names {
			by[method] = append(by[method], by[name]...)
		}
	}
	sent := map[string]string{}
	goFiles(t, func(path string) {
		if strings.Contains(path, "/csiclient/") || strings.Contains(path, "/csitest/") || strings.Contains(path, "/localdriver/") {
			return
		}
		code(path, func(line string) {
			for _, m := range anyCall.FindAllStringSubmatch(line, -1) {
				for _, rpc := range by[m[1]] {
					sent[rpc] = path
				}
			}
		})
	}, "agent", "volmgr")
	return sent
}
