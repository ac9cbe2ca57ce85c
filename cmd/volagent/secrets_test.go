package main_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/volmgr/csitest"
)

// plantedSecrets contains the values of the planted secrets by name. The hunt functions must not
// find these values in any place.
var plantedSecrets = map[string]string{
	"literal": "pl4nt3d-l1t3r4l", "file": "pl4nt3d-f1l3", "credential": "pl4nt3d-cr3d", "env": "pl4nt3d-3nv",
}

// plantedHost returns a host with one secret of each kind. It does not start the agent. lines are
// the lines of a volume file that refer to these secrets.
func plantedHost(t *testing.T) (h recorded, lines string) {
	t.Helper()
	h = prepared(t, "10s", nil)
	h.must(os.Mkdir(filepath.Join(h.dir, "cred"), 0o700))
	h.must(os.WriteFile(filepath.Join(h.dir, "cred", "name"), []byte(plantedSecrets["credential"]), 0o400))
	h.must(os.WriteFile(filepath.Join(h.dir, "secret"), []byte(plantedSecrets["file"]+"\n"), 0o600))
	h.env = append(h.env, "CREDENTIALS_DIRECTORY="+h.dir+"/cred", "PLANTED="+plantedSecrets["env"], "GOTRACEBACK=crash")
	return h, "secrets:\n  literal: " + plantedSecrets["literal"] + "\n  file: {file: " + h.dir + "/secret}\n  credential: {credential: name}\n  env: {env: PLANTED}\n"
}

// file writes a volume file and returns its path.
func (h recorded) file(lines string) string {
	h.t.Helper()
	name := filepath.Join(h.dir, "data.yaml")
	h.must(os.WriteFile(name, []byte("id: data\nplugin_id: rec\n"+lines), 0o600))
	return name
}

// gave asserts that the plugin received at least one call of a method since a mark, and that every
// such call contained exactly the given secrets.
func (h recorded) gave(since int64, method string, want map[string]string) {
	h.t.Helper()
	all, err := csitest.ReadJournal(h.cfg.JournalPath())
	h.must(err)
	calls := all.Since(since).Only(method)
	if len(calls) == 0 {
		h.t.Errorf("no %s was sent", method)
	}
	for _, c := range calls {
		if len(c.SecretSums) != len(want) {
			h.t.Errorf("%s carried the secrets %v", method, c.SecretKeys)
		}
		for name, value := range want {
			if c.SecretSums[name] != csitest.Sum(value) {
				h.t.Errorf("%s carried another value of %q", method, name)
			}
		}
	}
}

// get sends a GET request to the agent's API and returns the answer.
func (h *host) get(path string) string {
	h.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.socket())
	}}}
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, "http://volagent"+path, http.NoBody)
	h.must(err)
	resp, err := client.Do(req)
	h.must(err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	h.must(err)
	if resp.StatusCode != http.StatusOK {
		h.t.Errorf("GET %s: %s\n%s", path, resp.Status, all)
	}
	return string(all)
}

// hunt fails the test if a text contains a planted secret, either unchanged or in a common
// encoding.
func hunt(t testing.TB, where, text string) {
	t.Helper()
	for name, value := range plantedSecrets {
		for _, form := range []string{
			value, hex.EncodeToString([]byte(value)), base64.RawStdEncoding.EncodeToString([]byte(value)), base64.RawURLEncoding.EncodeToString([]byte(value)),
		} {
			if i := strings.Index(text, form); i >= 0 {
				t.Errorf("%s: the %s secret stands in %q", where, name, text[max(0, i-200):i])
			}
		}
	}
}

// huntFiles searches all files of the agent, including its log, for the planted secrets.
func (h recorded) huntFiles(when string) {
	h.t.Helper()
	for _, root := range []string{"d", "run", "agent.log", "plugins.d"} {
		h.must(filepath.WalkDir(filepath.Join(h.dir, root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			hunt(h.t, when+": "+path, string(raw))
			return err
		}))
	}
}

// huntAPI searches the answers of the API and the output of volctl for the planted secrets.
func (h recorded) huntAPI(when string) {
	h.t.Helper()
	for _, path := range []string{
		"/v1/volumes", "/v1/volumes/data", "/v1/claims", "/v1/plugins", "/v1/plugins/rec", "/v1/plugins/rec/logs", "/v1/node", "/v1/events", "/v1/health", "/metrics",
	} {
		hunt(h.t, when+": GET "+path, h.get(path))
	}
	for _, args := range []string{
		"volume status data", "volume status data -o json", "volume list -o wide", "volume list -o yaml", "claim list -o json",
		"node status", "events", "plugin status rec", "plugin logs rec",
	} {
		r := h.try(strings.Fields(args)...)
		hunt(h.t, when+": volctl "+args, r.out+r.err)
	}
}

// huntProcesses searches the arguments of all processes on this machine for the planted secrets.
func (h recorded) huntProcesses(when string) {
	h.t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	h.must(err)
	for _, name := range names {
		raw, _ := os.ReadFile(name) // the process may have ended
		hunt(h.t, when+": "+name, string(raw))
	}
}

// TestPlantedSecrets checks that the plugin receives a volume's secrets in the calls that need
// them, and that they appear nowhere else. It searches the state database with its log and copies,
// notes, the agent's log, events, answers of the API, arguments, metrics and core dumps. It
// searches in normal operation, after the plugin has repeated the secrets in an error, and after a
// crash with the loss of the database.
func TestPlantedSecrets(t *testing.T) {
	t.Parallel()
	h, lines := plantedHost(t)
	h.wrap = []string{"sh", "-c", `ulimit -Sc "$(ulimit -Hc)"; exec "$@"`, "sh"}
	h.start("rec")
	if limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", h.pluginPID("rec"))); err != nil || !regexp.MustCompile(`Max core file size +0 `).Match(limits) {
		t.Errorf("the plugin would dump core, with its secrets: %v\n%s", err, limits)
	}
	said := h.volctl("volume", "validate", h.file(lines), "-o", "json")
	mark := h.mark()
	said += h.volctl("volume", "create", h.file(lines), "-o", "json")
	said += h.volctl("volume", "register", h.file(lines)) // this registration changes nothing
	h.gave(mark, csitest.CreateVolume, plantedSecrets)
	said += h.volctl("volume", "claim", "data", "--alloc", "a", "-o", "json")
	for _, method := range []string{csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish} {
		h.gave(mark, method, plantedSecrets)
	}
	if notes := h.files("d/csi/rec/meta/*"); !strings.Contains(notes, `"sealed":"v1.`) {
		t.Errorf("there is no note with a sealed value:\n%s", notes)
	}
	hunt(t, "volctl", said)
	h.huntAPI("mounted")
	h.huntFiles("mounted")
	h.huntProcesses("mounted")

	// The plugin repeats the secrets in an error, unchanged and encoded.
	for _, value := range plantedSecrets {
		h.fault(csitest.Fault{Method: csitest.NodePublish, Code: codes.Internal, Message: "cannot use " + value + ", " +
			base64.StdEncoding.EncodeToString([]byte(value)) + ", " + base64.RawURLEncoding.EncodeToString([]byte(value)) + ", " + hex.EncodeToString([]byte(value))})
	}
	h.volctl("volume", "detach", "data", "a")
	r := h.try("volume", "claim", "data", "--alloc", "b", "--timeout", "60s")
	hunt(t, "a claim that fails at first", r.out+r.err)
	if r.code != 0 {
		t.Errorf("exit %d: %s", r.code, r.err)
	}
	if !strings.Contains(h.volctl("events"), "cannot use ***") {
		t.Errorf("the plugin did not repeat the secrets, or that is not told:\n%s", h.volctl("events"))
	}
	h.huntAPI("repeated")
	h.huntFiles("repeated")

	// End the agent with a signal that normally dumps core, and remove the database.
	pid := h.cmd.Process.Pid
	h.must(h.cmd.Process.Signal(syscall.SIGABRT))
	err := h.cmd.Wait()
	ws, ok := h.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if h.cmd = nil; err == nil || !ok || !ws.Signaled() || ws.CoreDump() {
		t.Errorf("the agent, process %d, ended otherwise, or dumped core: %v, core %t", pid, err, ok && ws.CoreDump())
	}
	said, _ = h.inspect("--json")
	hunt(t, "volagent inspect", said)
	h.must(os.WriteFile(filepath.Join(h.dir, "d", "state.db"), []byte(strings.Repeat("damage", 4096)), 0o600))
	h.start("rec")
	h.huntFiles("crashed")
	mark = h.mark()
	h.volctl("volume", "detach", "data", "b")
	h.gave(mark, csitest.ControllerUnpublish, plantedSecrets) // the agent took the sealed values from the note
	mark = h.mark()
	h.volctl("volume", "delete", "data", "-y", "--confirm=data")
	h.gave(mark, csitest.DeleteVolume, plantedSecrets)
	h.huntFiles("deleted")
}

// TestSecretRotation checks that a changed secret applies to the next call. The agent retries a
// step that failed with the old value as soon as a user registers the volume again. It must do so
// even if only the content of the referenced file has changed.
func TestSecretRotation(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	secret := filepath.Join(h.dir, "secret")
	put := func(value string) { h.must(os.WriteFile(secret, []byte(value+"\n"), 0o600)) }
	put("old")
	lines := func(value string) string {
		return "external_id: x\nsecrets:\n  key: {file: " + secret + "}\n  word: " + value + "\n"
	}
	h.volctl("volume", "register", h.file(lines("first")))
	refused := csitest.Fault{Method: csitest.NodeStage, Code: codes.Unauthenticated, Message: "who is that?", Times: -1}
	h.fault(refused)
	h.volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.shows("who is that?")
	h.must(h.cfg.Faults().Clear())
	mark := h.mark()
	if out := h.volctl("volume", "register", h.file(lines("second"))); !strings.Contains(out, `sealed anew: "word"`) || strings.Contains(out, "second") {
		t.Errorf("register says %s", out)
	}
	h.volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
	h.gave(mark, csitest.NodeStage, map[string]string{"key": "old", "word": "second"})

	// New content of a secret's file applies to the next call without a registration.
	mark = h.mark()
	put("new")
	h.volctl("volume", "detach", "data", "a")
	h.gave(mark, csitest.ControllerUnpublish, map[string]string{"key": "new", "word": "second"})
	h.fault(refused)
	h.volctl("volume", "claim", "data", "--alloc", "b", "--no-wait")
	h.shows("who is that?")
	h.must(h.cfg.Faults().Clear())
	put("newest")
	mark = h.mark()
	if out := h.volctl("volume", "register", h.file(lines("second"))); !strings.Contains(out, "unchanged") {
		t.Errorf("register says %s", out)
	}
	h.volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
	h.gave(mark, csitest.NodeStage, map[string]string{"key": "newest", "word": "second"})
	h.volctl("volume", "detach", "data", "b")
	h.over("data")
}

// TestSealingKey checks that the sealing key is a credential or a file that only root can read.
// Without the key the agent cannot use a sealed value. The error reports this, all other requests
// work, and a new registration seals the value again.
func TestSealingKey(t *testing.T) {
	t.Parallel()
	h, _ := plantedHost(t)
	h.start("rec")
	value := map[string]string{"word": "w0rd"}
	h.volctl("volume", "register", h.file("external_id: x\nsecrets: {word: w0rd}\n"))
	keyFile := filepath.Join(h.dir, "d", "keys", "secrets.key")
	for path, mode := range map[string]fs.FileMode{keyFile: 0o600, filepath.Dir(keyFile): 0o700 | fs.ModeDir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	h.must(os.Chmod(keyFile, 0o644))
	r := h.try("volume", "claim", "data", "--alloc", "a")
	if r.code != 1 || !strings.Contains(r.err, `cannot read secret "word" of volume "data"`) || !strings.Contains(r.err, "chmod 600 "+keyFile) {
		t.Errorf("a key that others can read: exit %d, %s", r.code, r.err)
	}
	h.over("data")
	h.must(os.Chmod(keyFile, 0o600))
	h.must(h.signal(syscall.SIGTERM))
	h.must(os.Remove(keyFile))
	h.start("rec")
	r = h.try("volume", "claim", "data", "--alloc", "a")
	for _, words := range []string{`cannot read secret "word" of volume "data": it is sealed with key `, keyFile, "give the value again"} {
		if r.code != 1 || !strings.Contains(r.err, words) {
			t.Errorf("a lost key: exit %d, no %q in %s", r.code, words, r.err)
		}
	}
	h.over("data")

	// With a credential the agent creates no key file.
	h.must(h.signal(syscall.SIGTERM))
	h.must(os.WriteFile(filepath.Join(h.dir, "cred", "volagent.key"), []byte(strings.Repeat("k", 32)), 0o400))
	h.start("rec")
	h.volctl("volume", "register", h.file("external_id: x\nsecrets: {word: w0rd}\n"))
	mark := h.mark()
	h.lives()
	h.gave(mark, csitest.NodeStage, value)
	if _, err := os.Stat(keyFile); err == nil {
		t.Error("a key file was made beside the credential")
	}

	// With "sealed: true" a volume file keeps the sealed value of the record. The agent refuses the
	// file if the record has no such value.
	h.volctl("volume", "register", h.file("external_id: x\nreclaim: delete\nsecrets: {word: {sealed: true}}\n"))
	mark = h.mark()
	h.lives()
	h.gave(mark, csitest.NodeStage, value)
	r = h.try("volume", "register", h.file("external_id: x\nsecrets: {word: {sealed: true}, other: {sealed: true}}\n"))
	if r.code != 4 || !strings.Contains(r.err, `cannot keep secret "other" of volume "data": the agent has no sealed value of it`) {
		t.Errorf("nothing to keep: exit %d, %s", r.code, r.err)
	}
}

// TestUnreadableSecret checks a reference to a secret that the agent cannot read. The agent reports
// the file, credential or variable, before it stores anything or calls the plugin.
func TestUnreadableSecret(t *testing.T) {
	t.Parallel()
	h := newRecorded(t, "10s", nil)
	mark := h.mark()
	for ref, words := range map[string]string{
		"{file: /none/key}":  "/none/key: no such file",
		"{credential: none}": `credential "none"`,
		"{env: NONE}":        "the agent's environment has no NONE",
	} {
		for _, verb := range []string{"create", "register", "validate"} {
			lines := "secrets: {key: " + ref + "}\n"
			if verb != "create" {
				lines += "external_id: x\n"
			}
			r := h.try("volume", verb, h.file(lines))
			if r.code != 1 || !strings.Contains(r.err, `cannot read secret "key" of volume "data"`) || !strings.Contains(r.err, words) {
				t.Errorf("%s of %s: exit %d, %s", verb, ref, r.code, r.err)
			}
		}
	}
	r := h.try("volume", "create", "data", "--plugin", "rec", "--secret", "key=file:/none/key")
	if r.code != 1 || !strings.Contains(r.err, "/none/key: no such file") {
		t.Errorf("create with flags: exit %d, %s", r.code, r.err)
	}
	if out := h.volctl("volume", "list", "-q"); out != "" {
		t.Errorf("left: %s", out)
	}
	h.expect(mark)

	secret := filepath.Join(h.dir, "secret")
	h.must(os.WriteFile(secret, nil, 0o600))
	h.volctl("volume", "create", "data", "--plugin", "rec", "--secret", "key=file:"+secret)
	h.must(os.Remove(secret))
	if r := h.try("volume", "delete", "data", "-y"); r.code != 1 || !strings.Contains(r.err, secret+": no such file") {
		t.Errorf("delete: exit %d, %s", r.code, r.err)
	}
	if out := h.volctl("volume", "status", "data"); !strings.Contains(out, "free") {
		t.Errorf("after a delete that was not begun:\n%s", out)
	}
}
