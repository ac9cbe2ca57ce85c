package provision_test

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

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/csitest"
)

// plantedHost returns a host with one secret of each kind, without starting the agent. The result
// lines contains the lines of a volume file that refer to these secrets.
func plantedHost(t *testing.T) (h harness.Recorded, lines string) {
	t.Helper()
	h = harness.NewRecorded(t, "10s", nil)
	h.Must(os.Mkdir(filepath.Join(h.Dir, "cred"), 0o700))
	h.Must(os.WriteFile(filepath.Join(h.Dir, "cred", "name"), []byte(harness.PlantedSecrets["credential"]), 0o400))
	h.Must(os.WriteFile(filepath.Join(h.Dir, "secret"), []byte(harness.PlantedSecrets["file"]+"\n"), 0o600))
	h.Env = append(h.Env, "CREDENTIALS_DIRECTORY="+h.Dir+"/cred", "PLANTED="+harness.PlantedSecrets["env"], "GOTRACEBACK=crash")
	return h, "secrets:\n  literal: " + harness.PlantedSecrets["literal"] + "\n  file: {file: " + h.Dir + "/secret}\n  credential: {credential: name}\n  env: {env: PLANTED}\n"
}

// dataFile writes a volume file and returns its path.
func dataFile(h harness.Recorded, lines string) string {
	h.T.Helper()
	name := filepath.Join(h.Dir, "data.yaml")
	h.Must(os.WriteFile(name, []byte("id: data\nplugin_id: rec\n"+lines), 0o600))
	return name
}

// getPath sends a GET request to the agent's API and returns the answer.
func getPath(h *harness.Host, path string) string {
	h.T.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.Socket())
	}}}
	req, err := http.NewRequestWithContext(h.T.Context(), http.MethodGet, "http://volagent"+path, http.NoBody)
	h.Must(err)
	resp, err := client.Do(req)
	h.Must(err)
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	h.Must(err)
	if resp.StatusCode != http.StatusOK {
		h.T.Errorf("GET %s: %s\n%s", path, resp.Status, all)
	}
	return string(all)
}

// huntFiles searches all of the agent's files, including its log, for the planted secrets.
func huntFiles(h harness.Recorded, when string) {
	h.T.Helper()
	for _, root := range []string{"d", "run", "agent.log", "plugins.d"} {
		h.Must(filepath.WalkDir(filepath.Join(h.Dir, root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			raw, err := os.ReadFile(path)
			harness.HuntSecrets(h.T, when+": "+path, string(raw))
			return err
		}))
	}
}

// huntAPI searches the answers of the API and the output of volctl for the planted secrets.
func huntAPI(h harness.Recorded, when string) {
	h.T.Helper()
	for _, path := range []string{
		"/v1/volumes", "/v1/volumes/data", "/v1/claims", "/v1/plugins", "/v1/plugins/rec", "/v1/plugins/rec/logs", "/v1/node", "/v1/events", "/v1/health", "/metrics",
	} {
		harness.HuntSecrets(h.T, when+": GET "+path, getPath(h.Host, path))
	}
	for _, args := range []string{
		"volume status data", "volume status data -o json", "volume list -o wide", "volume list -o yaml", "claim list -o json",
		"node status", "events", "plugin status rec", "plugin logs rec",
	} {
		r := h.Try(strings.Fields(args)...)
		harness.HuntSecrets(h.T, when+": volctl "+args, r.Out+r.Err)
	}
}

// huntProcesses searches the arguments of all processes on this machine for the planted secrets.
func huntProcesses(h harness.Recorded, when string) {
	h.T.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	h.Must(err)
	for _, name := range names {
		raw, _ := os.ReadFile(name) // ReadFile fails if the process has ended
		harness.HuntSecrets(h.T, when+": "+name, string(raw))
	}
}

// TestPlantedSecrets checks that the plugin receives a volume's secrets in the calls that need
// them, and that the secrets appear nowhere else. The test searches the state database with its log
// and copies, the notes, the agent's log, events, API answers, process arguments, metrics and core
// dumps. It searches during normal operation, after the plugin has quoted the secrets in an error,
// and after a crash with the loss of the database.
func TestPlantedSecrets(t *testing.T) {
	t.Parallel()
	h, lines := plantedHost(t)
	h.Wrapper = []string{"sh", "-c", `ulimit -Sc "$(ulimit -Hc)"; exec "$@"`, "sh"}
	h.Start("rec")
	if limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", h.PluginPID("rec"))); err != nil || !regexp.MustCompile(`Max core file size +0 `).Match(limits) {
		t.Errorf("the plugin would dump core, with its secrets: %v\n%s", err, limits)
	}
	said := h.Volctl("volume", "validate", dataFile(h, lines), "-o", "json")
	mark := h.Mark()
	said += h.Volctl("volume", "create", dataFile(h, lines), "-o", "json")
	// Registering the same file again changes nothing.
	said += h.Volctl("volume", "register", dataFile(h, lines))
	h.ExpectSecrets(mark, csitest.CreateVolume, harness.PlantedSecrets)
	said += h.Volctl("volume", "claim", "data", "--alloc", "a", "-o", "json")
	for _, method := range []string{csitest.ControllerPublish, csitest.NodeStage, csitest.NodePublish} {
		h.ExpectSecrets(mark, method, harness.PlantedSecrets)
	}
	if notes := h.ReadFiles("d/csi/rec/meta/*"); !strings.Contains(notes, `"sealed":"v1.`) {
		t.Errorf("there is no note with a sealed value:\n%s", notes)
	}
	harness.HuntSecrets(t, "volctl", said)
	huntAPI(h, "mounted")
	huntFiles(h, "mounted")
	huntProcesses(h, "mounted")

	// The plugin quotes the secrets in an error, both unchanged and encoded.
	for _, value := range harness.PlantedSecrets {
		h.AddFaults(csitest.Fault{Method: csitest.NodePublish, Code: codes.Internal, Message: "cannot use " + value + ", " +
			base64.StdEncoding.EncodeToString([]byte(value)) + ", " + base64.RawURLEncoding.EncodeToString([]byte(value)) + ", " + hex.EncodeToString([]byte(value))})
	}
	h.Volctl("volume", "detach", "data", "a")
	r := h.Try("volume", "claim", "data", "--alloc", "b", "--timeout", "60s")
	harness.HuntSecrets(t, "a claim that fails at first", r.Out+r.Err)
	if r.Code != 0 {
		t.Errorf("exit %d: %s", r.Code, r.Err)
	}
	if !strings.Contains(h.Volctl("events"), "cannot use ***") {
		t.Errorf("the plugin did not repeat the secrets, or that is not told:\n%s", h.Volctl("events"))
	}
	huntAPI(h, "repeated")
	huntFiles(h, "repeated")

	// Kill the agent with a signal that normally causes a core dump, and remove the database.
	pid := h.Cmd.Process.Pid
	h.Must(h.Cmd.Process.Signal(syscall.SIGABRT))
	err := h.Cmd.Wait()
	ws, ok := h.Cmd.ProcessState.Sys().(syscall.WaitStatus)
	if h.Cmd = nil; err == nil || !ok || !ws.Signaled() || ws.CoreDump() {
		t.Errorf("the agent, process %d, ended otherwise, or dumped core: %v, core %t", pid, err, ok && ws.CoreDump())
	}
	said, _ = harness.Inspect(h.Host, "--json")
	harness.HuntSecrets(t, "volagent inspect", said)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "d", "state.db"), []byte(strings.Repeat("damage", 4096)), 0o600))
	h.Start("rec")
	huntFiles(h, "crashed")
	mark = h.Mark()
	h.Volctl("volume", "detach", "data", "b")
	// The note contained the sealed values.
	h.ExpectSecrets(mark, csitest.ControllerUnpublish, harness.PlantedSecrets)
	mark = h.Mark()
	h.Volctl("volume", "delete", "data", "-y", "--confirm=data")
	h.ExpectSecrets(mark, csitest.DeleteVolume, harness.PlantedSecrets)
	huntFiles(h, "deleted")
}

// TestSecretRotation checks that the next call uses a changed secret. If a step has failed with the
// old value, the agent must retry the step as soon as a user registers the volume again. This also
// applies if only the content of the secret's file has changed.
func TestSecretRotation(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	secret := filepath.Join(h.Dir, "secret")
	put := func(value string) { h.Must(os.WriteFile(secret, []byte(value+"\n"), 0o600)) }
	put("old")
	lines := func(value string) string {
		return "external_id: x\nsecrets:\n  key: {file: " + secret + "}\n  word: " + value + "\n"
	}
	h.Volctl("volume", "register", dataFile(h, lines("first")))
	refused := csitest.Fault{Method: csitest.NodeStage, Code: codes.Unauthenticated, Message: "who is that?", Times: -1}
	h.AddFaults(refused)
	h.Volctl("volume", "claim", "data", "--alloc", "a", "--no-wait")
	h.AwaitStatus("who is that?")
	h.Must(h.Config.Faults().Clear())
	mark := h.Mark()
	if out := h.Volctl("volume", "register", dataFile(h, lines("second"))); !strings.Contains(out, `sealed anew: "word"`) || strings.Contains(out, "second") {
		t.Errorf("register says %s", out)
	}
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
	h.ExpectSecrets(mark, csitest.NodeStage, map[string]string{"key": "old", "word": "second"})

	// If the content of a secret's file changes, the next call must use it without a registration.
	mark = h.Mark()
	put("new")
	h.Volctl("volume", "detach", "data", "a")
	h.ExpectSecrets(mark, csitest.ControllerUnpublish, map[string]string{"key": "new", "word": "second"})
	h.AddFaults(refused)
	h.Volctl("volume", "claim", "data", "--alloc", "b", "--no-wait")
	h.AwaitStatus("who is that?")
	h.Must(h.Config.Faults().Clear())
	put("newest")
	mark = h.Mark()
	if out := h.Volctl("volume", "register", dataFile(h, lines("second"))); !strings.Contains(out, "unchanged") {
		t.Errorf("register says %s", out)
	}
	h.Volctl("wait", "--volume", "data", "--for", "mounted", "--timeout", "60s")
	h.ExpectSecrets(mark, csitest.NodeStage, map[string]string{"key": "newest", "word": "second"})
	h.Volctl("volume", "detach", "data", "b")
	h.ExpectClean("data")
}

// TestSealingKey checks the key with which the agent seals secrets. The key is either a credential
// or a file that only root can read. Without the key the agent cannot use a sealed value and
// reports this, but all other requests work. A new registration seals the value again.
func TestSealingKey(t *testing.T) {
	t.Parallel()
	h, _ := plantedHost(t)
	h.Start("rec")
	value := map[string]string{"word": "w0rd"}
	h.Volctl("volume", "register", dataFile(h, "external_id: x\nsecrets: {word: w0rd}\n"))
	keyFile := filepath.Join(h.Dir, "d", "keys", "secrets.key")
	for path, mode := range map[string]fs.FileMode{keyFile: 0o600, filepath.Dir(keyFile): 0o700 | fs.ModeDir} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	h.Must(os.Chmod(keyFile, 0o644))
	r := h.Try("volume", "claim", "data", "--alloc", "a")
	if r.Code != 1 || !strings.Contains(r.Err, `cannot read secret "word" of volume "data"`) || !strings.Contains(r.Err, "chmod 600 "+keyFile) {
		t.Errorf("a key that others can read: exit %d, %s", r.Code, r.Err)
	}
	h.ExpectClean("data")
	h.Must(os.Chmod(keyFile, 0o600))
	h.Must(h.Signal(syscall.SIGTERM))
	h.Must(os.Remove(keyFile))
	h.Start("rec")
	r = h.Try("volume", "claim", "data", "--alloc", "a")
	for _, words := range []string{`cannot read secret "word" of volume "data": it is sealed with key `, keyFile, "give the value again"} {
		if r.Code != 1 || !strings.Contains(r.Err, words) {
			t.Errorf("a lost key: exit %d, no %q in %s", r.Code, words, r.Err)
		}
	}
	h.ExpectClean("data")

	// If the key is a credential, the agent must not create a key file.
	h.Must(h.Signal(syscall.SIGTERM))
	h.Must(os.WriteFile(filepath.Join(h.Dir, "cred", "volagent.key"), []byte(strings.Repeat("k", 32)), 0o400))
	h.Start("rec")
	h.Volctl("volume", "register", dataFile(h, "external_id: x\nsecrets: {word: w0rd}\n"))
	mark := h.Mark()
	h.UseTwice()
	h.ExpectSecrets(mark, csitest.NodeStage, value)
	if _, err := os.Stat(keyFile); err == nil {
		t.Error("a key file was made beside the credential")
	}

	// In a volume file, "sealed: true" means that the record's sealed value remains. The agent must
	// refuse the file if the record has no such value.
	h.Volctl("volume", "register", dataFile(h, "external_id: x\nreclaim: delete\nsecrets: {word: {sealed: true}}\n"))
	mark = h.Mark()
	h.UseTwice()
	h.ExpectSecrets(mark, csitest.NodeStage, value)
	r = h.Try("volume", "register", dataFile(h, "external_id: x\nsecrets: {word: {sealed: true}, other: {sealed: true}}\n"))
	if r.Code != 4 || !strings.Contains(r.Err, `cannot keep secret "other" of volume "data": the agent has no sealed value of it`) {
		t.Errorf("nothing to keep: exit %d, %s", r.Code, r.Err)
	}
}

// TestUnreadableSecret checks a volume that refers to a secret that the agent cannot read. The
// agent must name the file, credential or variable before it stores anything or calls the plugin.
func TestUnreadableSecret(t *testing.T) {
	t.Parallel()
	h := harness.StartRecorded(t, "10s", nil)
	mark := h.Mark()
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
			r := h.Try("volume", verb, dataFile(h, lines))
			if r.Code != 1 || !strings.Contains(r.Err, `cannot read secret "key" of volume "data"`) || !strings.Contains(r.Err, words) {
				t.Errorf("%s of %s: exit %d, %s", verb, ref, r.Code, r.Err)
			}
		}
	}
	r := h.Try("volume", "create", "data", "--plugin", "rec", "--secret", "key=file:/none/key")
	if r.Code != 1 || !strings.Contains(r.Err, "/none/key: no such file") {
		t.Errorf("create with flags: exit %d, %s", r.Code, r.Err)
	}
	if out := h.Volctl("volume", "list", "-q"); out != "" {
		t.Errorf("left: %s", out)
	}
	h.ExpectCalls(mark)

	secret := filepath.Join(h.Dir, "secret")
	h.Must(os.WriteFile(secret, nil, 0o600))
	h.Volctl("volume", "create", "data", "--plugin", "rec", "--secret", "key=file:"+secret)
	h.Must(os.Remove(secret))
	if r := h.Try("volume", "delete", "data", "-y"); r.Code != 1 || !strings.Contains(r.Err, secret+": no such file") {
		t.Errorf("delete: exit %d, %s", r.Code, r.Err)
	}
	if out := h.Volctl("volume", "status", "data"); !strings.Contains(out, "free") {
		t.Errorf("after a delete that was not begun:\n%s", out)
	}
}
