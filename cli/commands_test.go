package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
)

// expect checks the exit code and the complete stdout. It also checks that stderr contains a text.
func expect(t *testing.T, got result, code int, stdout, stderr string) {
	t.Helper()
	if got.code != code || got.stdout != stdout || !strings.Contains(got.stderr, stderr) || (stderr == "") != (got.stderr == "") {
		t.Errorf("got  exit %d\nstdout %q\nstderr %q\nwant exit %d\nstdout %q\nstderr %q", got.code, got.stdout, got.stderr, code, stdout, stderr)
	}
}

func expectSent(t *testing.T, f *fake, want ...string) {
	t.Helper()
	got := f.sent()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("sent\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func taken(volume, alloc, path string) api.Claim {
	return api.Claim{Volume: volume, Alloc: alloc, State: api.ClaimMounted, Wanted: true, Path: path}
}

func answers(v any) func(*http.Request) (any, error) {
	return func(*http.Request) (any, error) { return v, nil }
}

func refuses(e api.Error) func(*http.Request) (any, error) {
	return func(*http.Request) (any, error) { return nil, &e }
}

func TestEveryExitCode(t *testing.T) {
	for code, exit := range map[api.Code]int{
		api.CodeFailed: 1, api.CodeInvalid: 2, api.CodeNotFound: 3, api.CodeRefused: 4, api.CodeTimeout: 5,
		api.CodePluginUnavailable: 6, api.CodeUnreachable: 7, api.CodePermission: 8, "of a newer agent": 1,
	} {
		f := world()
		f.on["DELETE /v1/volumes/data"] = refuses(api.Error{Code: code, Message: "because \x1b[2J", Hint: "do x", Details: map[string]string{"k": "v"}})
		r := with(t, f)
		expect(t, r.volctl("volume", "deregister", "data"), exit, "", "volctl: cannot deregister volume \"data\": because \\x1b[2J\nhint: do x\n")
		res := r.volctl("volume", "deregister", "data", "-o", "json")
		var body api.ErrorBody
		if err := json.Unmarshal([]byte(res.stderr), &body); err != nil || res.code != exit || res.stdout != "" {
			t.Fatalf("%s: %+v, %v", code, res, err)
		}
		if e := body.Error; e.Code != code || e.Message != "cannot deregister volume \"data\": because \x1b[2J" || e.Hint != "do x" || e.Details["k"] != "v" {
			t.Errorf("%s: got %+v", code, e)
		}
	}
	none := run{ctx: t.Context(), socket: filepath.Join(shortDir(t), "none")}
	expect(t, none.volctl("volume", "list"), 7, "", "volctl: cannot list volumes: no agent answers on SOCKET: there is no such socket\nhint: start the agent for this socket, or name another socket with --socket or VOLCTL_SOCKET\n")
	expect(t, none.volctl("version"), 0, "volctl  dev\nagent   not asked: no agent answers on SOCKET: there is no such socket\n", "")
	expect(t, none.volctl("volume", "list", "--help"), 0, none.volctl("help", "volume", "list").stdout, "")
}

func TestClaim(t *testing.T) {
	const path = "/var/lib/volagent/x"
	f := world()
	var wait time.Duration
	f.on["PUT /v1/volumes/data/claims/web.service"] = func(r *http.Request) (any, error) {
		wait, _ = time.ParseDuration(r.URL.Query().Get("wait"))
		return taken("data", "web.service", path), nil
	}
	f.on["PUT /v1/volumes/data/claims/a"] = answers(taken("data", "a", path))
	f.on["PUT /v1/volumes/data[3]/claims/manual"] = answers(taken("data[3]", "manual", "/srv/at"))
	r := with(t, f)
	r.cgroup = "0::/system.slice/web.service\n"
	expect(t, r.volctl("volume", "claim", "data"), 0, path+"\n", "")
	if wait < 70*time.Second || wait > 80*time.Second {
		t.Errorf("the default wait is %s", wait)
	}
	expect(t, r.volctl("volume", "claim", "data", "-q", "-timeout", "50s"), 0, path+"\n", "")
	if wait < 40*time.Second || wait > 50*time.Second {
		t.Errorf("the wait is %s", wait)
	}
	f.sent()
	expect(t, r.volctl("volume", "claim", "data", "-alloc=manual", "-per-alloc", "3", "-read-only", "-owner", "none", "--access-mode", "multi-node-multi-writer",
		"--attachment-mode", "file-system", "--mount-flag", "noatime", "--mount-flag", "a,b", "-at", "/srv/at", "--no-wait"), 0, "/srv/at\n", "")
	expectSent(t, f, `PUT /v1/volumes/data%5B3%5D/claims/manual {"read_only":true,"access_mode":"multi-node-multi-writer","attachment_mode":"file-system","mount_flags":["noatime","a,b"],"at":"/srv/at","owner":{"kind":"none"}}`)
	r.volctl("volume", "claim", "data", "--alloc", "a", "--owner", "none", "--note", "größe 2", "--no-wait")
	expectSent(t, f, `PUT /v1/volumes/data/claims/a {"owner":{"kind":"none"},"note":"größe 2"}`)
	for note, words := range map[string]string{
		strings.Repeat("x", api.MaxNote+1): "note has 201 characters; at most 200 are allowed\nhint: a note has at most 200 printable characters\n",
		"a\nb":                             "note contains the unprintable character U+000A",
		"\xe4":                             "note is not UTF-8",
	} {
		expect(t, r.volctl("volume", "claim", "data", "--note", note), 2, "", words)
	}
	expectSent(t, f)
	res := r.volctl("volume", "claim", "data", "-o", "json")
	var claim api.Claim
	if err := json.Unmarshal([]byte(res.stdout), &claim); err != nil || claim.Path != path {
		t.Errorf("json: %+v, %v", res, err)
	}
	expect(t, r.volctl("volume", "claim", "dta"), 3, "", `near: "data"`)
	// A command that changes state accepts only a complete id.
	expect(t, r.volctl("volume", "claim", "data-"), 3, "", `near: "data"`)
}

func TestClaimNotMounted(t *testing.T) {
	f := world()
	pending := taken("data", "manual", "/x")
	pending.State = api.ClaimPending
	f.on["PUT /v1/volumes/data/claims/manual"] = answers(pending)
	r := with(t, f)
	expect(t, r.volctl("volume", "claim", "data", "--no-wait"), 0, "", "the claim is pending; to wait for it: volctl wait --volume data --for mounted\n")
	expect(t, r.volctl("volume", "claim", "data"), 1, "", "the claim is pending\nhint: volctl volume status data\n")
}

// TestClaimOutlivesTheAgent checks that volctl repeats the request for a claim if the agent
// restarts during the request.
func TestClaimOutlivesTheAgent(t *testing.T) {
	f := world()
	calls := 0
	f.on["PUT /v1/volumes/data/claims/manual"] = func(*http.Request) (any, error) {
		if calls++; calls == 1 {
			return nil, errors.New("die")
		}
		return taken("data", "manual", "/x"), nil
	}
	expect(t, with(t, f).volctl("volume", "claim", "data"), 0, "/x\n", "")
	if calls != 2 {
		t.Errorf("%d calls", calls)
	}
	f.on["PUT /v1/volumes/data/claims/manual"] = func(*http.Request) (any, error) { return nil, errors.New("die") }
	expect(t, with(t, f).volctl("volume", "claim", "data", "--timeout", "400ms"), 7, "", "hint: the agent was restarted meanwhile, so the claim may still exist: volctl volume detach data manual\n")
	expect(t, with(t, f).volctl("volume", "claim", "data", "--no-wait"), 7, "", "disconnected before it answered")
}

func TestClaimInterrupted(t *testing.T) {
	for name, tt := range map[string]struct {
		after  func(*http.Request) (any, error)
		stderr string
	}{
		"withdrawn": {refuses(api.Error{Code: api.CodeNotFound, Message: "no claim"}), `volctl: cannot claim volume "data" for alloc "manual": it was interrupted, and the claim is withdrawn` + "\n"},
		"releasing": {answers(api.Claim{State: api.ClaimUnpublishing}), "the claim is withdrawn, and its detach continues\nhint: volctl volume status data\n"},
		"stays":     {answers(taken("data", "manual", "/x")), "alloc \"manual\" still has a claim, which was there before this call\nhint: volctl volume detach data manual\n"},
		"unknown":   {refuses(api.Error{Code: api.CodeFailed, Message: "disk"}), "cannot read the state of the claim: disk\nhint: volctl claim list --volume data\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := world()
			ctx, cancel := context.WithCancel(t.Context())
			closed := make(chan bool, 1)
			f.on["PUT /v1/volumes/data/claims/manual"] = func(r *http.Request) (any, error) {
				cancel()
				<-r.Context().Done()
				closed <- true
				return nil, errors.New("nobody listens")
			}
			f.on["GET /v1/volumes/data/claims/manual"] = tt.after
			r := with(t, f)
			r.ctx = ctx
			expect(t, r.volctl("volume", "claim", "data"), 1, "", tt.stderr)
			select {
			case <-closed:
			case <-time.After(60 * time.Second):
				t.Error("the connection was not closed")
			}
		})
	}
}

func TestDetach(t *testing.T) {
	f := world()
	release := answers(api.Done{})
	for _, path := range []string{"data/claims/postgres.service", "data-shared/claims/a", "data-shared/claims/b"} {
		f.on["DELETE /v1/volumes/"+path] = release
	}
	f.on["DELETE /v1/volumes/data-shared/claims/c"] = refuses(api.Error{Code: api.CodeRefused, Message: "its owner is alive", Hint: "--force"})
	f.on["DELETE /v1/volumes/data/claims/postgress.service"] = refuses(api.Error{Code: api.CodeNotFound, Message: "no such claim"})
	r := with(t, f)

	expect(t, r.volctl("volume", "detach", "data"), 0, "detached volume \"data\" from alloc \"postgres.service\"\n", "")
	expectSent(t, f, "GET /v1/volumes/data", "DELETE /v1/volumes/data/claims/postgres.service?wait=1m20s")
	expect(t, r.volctl("volume", "detach", "data", "postgres.service", "-force", "-no-wait"), 0, "detaching volume \"data\" from alloc \"postgres.service\"\n", "")
	expectSent(t, f, "DELETE /v1/volumes/data/claims/postgres.service?force=true")
	expect(t, r.volctl("volume", "detach", "data", "-q", "-timeout", "2s"), 0, "postgres.service\n", "")
	f.sent()

	expect(t, r.volctl("volume", "detach", "data", "--json"), 0, "[\n  {\n    \"volume\": \"data\",\n    \"alloc\": \"postgres.service\",\n    \"outcome\": \"detached\"\n  }\n]\n", "")
	f.sent()
	expect(t, r.volctl("volume", "detach", "data-shared"), 2, "", "it has 3 claims, of allocs \"a\", \"b\", \"c\"\nhint: volctl volume detach data-shared ALLOC, or --all\n")
	expectSent(t, f, "GET /v1/volumes/data-shared")
	expect(t, r.volctl("volume", "detach", "data-shared", "b", "a"), 0, "detached volume \"data-shared\" from alloc \"b\"\ndetached volume \"data-shared\" from alloc \"a\"\n", "")
	expect(t, r.volctl("volume", "detach", "data-shared", "-all"), 4, "detached volume \"data-shared\" from alloc \"a\"\ndetached volume \"data-shared\" from alloc \"b\"\n",
		"volctl: cannot detach volume \"data-shared\" from alloc \"c\": its owner is alive\nhint: --force\n")

	expect(t, r.volctl("volume", "detach", "web[0]"), 3, "", "it has no claims")
	expect(t, r.volctl("volume", "detach", "web[0]", "-ignore-not-found"), 0, "nothing to do\n", "")
	expect(t, r.volctl("volume", "detach", "dat"), 3, "", `near: "data", "data-shared"; all: volctl volume list`)
	expect(t, r.volctl("volume", "detach", "dat", "x", "--ignore-not-found"), 0, "nothing to do\n", "")
	for _, node := range []string{"9c2d8a3b", "9c2d8a3b-5a5b-8e9b-8f2e-d4e5f6071829"} {
		expect(t, r.volctl("volume", "detach", "-namespace=default", "data", node), 3, "", "hint: unlike Nomad, name no node: volctl detaches the claims of allocs on this host, with volctl volume detach data ALLOC, or --all\n")
	}
	expect(t, r.volctl("volume", "detach", "data", "postgress.service"), 3, "", `near: "postgres.service"; all: volctl claim list`)
	expect(t, r.volctl("volume", "detach", "data", "postgress.service", "--ignore-not-found", "-o", "json"), 0, "[]\n", "")
}

func TestDeregister(t *testing.T) {
	f := world()
	f.on["DELETE /v1/volumes/data"] = answers(api.DeregisterResult{Left: []string{"/srv/data is still mounted"}})
	const did = "deregistered volume \"data\"\nleft: /srv/data is still mounted\n"
	r := with(t, f)
	expect(t, r.volctl("volume", "deregister", "data", "-force"), 0, did, "")
	expectSent(t, f, "DELETE /v1/volumes/data?force=true")
	expect(t, r.volctl("volume", "deregister", "data", "-o", "json"), 0, "{\n  \"left\": [\n    \"/srv/data is still mounted\"\n  ]\n}\n", "")
	expect(t, r.volctl("volume", "deregister", "gone"), 3, "", "hint: volctl volume list\n")
	expect(t, r.volctl("volume", "deregister", "gone", "-ignore-not-found"), 0, "nothing to do\n", "")
	f.sent()

	r.terminal = true
	for _, answer := range []string{"", "\n", "n\n", "yess\n", "data\n"} {
		r.stdin = answer
		res := r.volctl("volume", "deregister", "data")
		if res.code != 1 || !strings.HasPrefix(res.stderr, `Forget volume "data" (its data stays at the plugin)? [y/N] `) || !strings.Contains(res.stderr, "it was not confirmed; nothing was changed\n") {
			t.Errorf("%q: %+v", answer, res)
		}
		expectSent(t, f, "GET /v1/volumes/data")
	}
	r.stdin = "Y\n"
	expect(t, r.volctl("volume", "deregister", "data"), 0, did, "[y/N] ")
	expectSent(t, f, "GET /v1/volumes/data", "DELETE /v1/volumes/data")
	r.stdin = ""
	expect(t, r.volctl("volume", "deregister", "data", "-y"), 0, did, "")
}

func TestDelete(t *testing.T) {
	f := world()
	f.on["POST /v1/volumes/data/delete"] = answers(api.Done{})
	r := with(t, f)
	expect(t, r.volctl("volume", "delete", "data"), 2, "", "hint: volctl volume delete data -y\n")
	expect(t, r.volctl("volume", "delete", "data", "--confirm=data"), 2, "", "asking for confirmation needs a terminal")
	expectSent(t, f)
	expect(t, r.volctl("volume", "delete", "data", "-y"), 0, "deleted volume \"data\"\n", "")
	expectSent(t, f, "POST /v1/volumes/data/delete")
	expect(t, r.volctl("volume", "delete", "data", "-y", "-confirm", "data", "-q"), 0, "data\n", "")
	expectSent(t, f, "POST /v1/volumes/data/delete?confirm=data")
	expect(t, r.volctl("volume", "delete", "gone", "-y", "-ignore-not-found"), 0, "nothing to do\n", "")
	expect(t, r.volctl("volume", "delete", "dat", "-y"), 3, "", "near: ")
	f.sent()
	f.ours("data") // volctl asks for confirmation only if the volume can be deleted
	r.terminal, r.stdin = true, "no\n"
	expect(t, r.volctl("volume", "delete", "data"), 1, "", `Destroy volume "data" and all its data? [y/N] `)
	expectSent(t, f, "GET /v1/volumes/data")
	r.stdin = "yes\n"
	expect(t, r.volctl("volume", "delete", "data"), 0, "deleted volume \"data\"\n", "[y/N] ")
}

// ours marks a volume as created by the agent, and removes all its claims.
func (f *fake) ours(id string) {
	for i := range f.volumes {
		if f.volumes[i].Spec.ID == id {
			f.volumes[i].Created, f.volumes[i].Claims = true, nil
		}
	}
}

// TestInterruptedQuestion checks that Ctrl-C ends volctl while it waits for an answer to a
// question, and that volctl then changes nothing.
func TestInterruptedQuestion(t *testing.T) {
	f := world()
	f.ours("data")
	r := with(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	defer out.Close()
	var stderr strings.Builder
	code := Run(ctx, Env{Env: command.Env{
		Args: []string{"volume", "delete", "data"}, Stdin: readerFunc(func(p []byte) (int, error) { cancel(); return in.Read(p) }), StdinTerminal: true,
		Stdout: io.Discard, Stderr: &stderr, Now: time.Now, Getenv: func(string) string { return r.socket },
	}})
	if code != 1 || !strings.Contains(stderr.String(), `cannot delete volume "data": no answer: interrupted`) {
		t.Errorf("exit %d, %q", code, stderr.String())
	}
	expectSent(t, f, "GET /v1/volumes/data")
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestCreate(t *testing.T) {
	f := world()
	made := api.VolumeResult{Outcome: "created", Volume: api.Volume{Spec: api.VolumeSpec{ID: "a"}, Capacity: 10 << 30}}
	f.on["POST /v1/volumes/a/create"] = answers(made)
	f.on["POST /v1/volumes/b/create"] = answers(api.VolumeResult{Outcome: "unchanged", Volume: api.Volume{Spec: api.VolumeSpec{ID: "b"}}})
	f.on["POST /v1/volumes/c/create"] = refuses(api.Error{Code: api.CodeNotFound, Message: "no such plugin"})
	f.on["PUT /v1/volumes/a"] = answers(api.VolumeResult{Outcome: "updated", Changes: []string{"reclaim: retain → delete"}, Volume: made.Volume})
	r := with(t, f)

	expect(t, r.volctl("volume", "create", "-detach", "-verbose", "-namespace", "default", "a", "-plugin", "local", "-size", "10GiB", "-param", "type=image", "-param", "x=a=b", "-fs-type", "xfs"), 0, "created volume \"a\" (10GiB, 10737418240 bytes)\n", "")
	expectSent(t, f, `POST /v1/volumes/a/create?wait=10m0s {"id":"a","plugin_id":"local","capacity_min":10737418240,"capabilities":[{"access_mode":"single-node-writer","attachment_mode":"file-system"}],"mount_options":{"fs_type":"xfs"},"parameters":{"type":"image","x":"a=b"}}`)
	expect(t, r.volctl("volume", "status", "-type", "host", "a"), 2, "", "only CSI volumes exist here; for a host volume of Nomad, create a volume of the bundled plugin local")
	for args, want := range map[string]string{
		"a --size 1GiB":                      "--plugin or --class is needed",
		"a --plugin p --size 10":             "--size: bad size \"10\": a number without a unit counts bytes, and must be at least 1048576",
		"a --plugin a/b":                     "bad plugin id",
		"a/b --plugin p":                     "bad volume id",
		"a --plugin p --param x":             "--param needs KEY=VALUE",
		"a --plugin p --param x=1 --param x": "--param needs KEY=VALUE",
		"a --plugin p --access-mode x":       "unknown access mode \"x\"",
		"nothing-there":                      "cannot read \"nothing-there\": no such file or directory\nhint: without a file: volctl volume create nothing-there --plugin local\n",
		"./nothing/there.yaml":               "no such file or directory\n",
		".":                                  "is a directory",
	} {
		expect(t, r.volctl(append([]string{"volume", "create"}, strings.Fields(args)...)...), 2, "", want)
	}
	expectSent(t, f)

	for _, c := range []struct {
		context, mutable map[string]string
		want             string
	}{
		{map[string]string{"type": "directory"}, nil, "10GiB, 10737418240 bytes, size not enforced"},
		{map[string]string{"type": "directory"}, map[string]string{"quota": "none"}, "10GiB, 10737418240 bytes, size not enforced"},
		{map[string]string{"type": "directory"}, map[string]string{"quota": "5GiB"}, "10GiB, 10737418240 bytes"},
		{map[string]string{"type": "directory", "size": "enforced"}, nil, "10GiB, 10737418240 bytes"},
		{map[string]string{"type": "image"}, nil, "10GiB, 10737418240 bytes"},
	} {
		loose := made
		loose.Volume.Driver, loose.Volume.Spec.Context, loose.Volume.Spec.Mutable = "local.csi.volagent", c.context, c.mutable
		f.on["POST /v1/volumes/a/create"] = answers(loose)
		expect(t, r.volctl("volume", "create", "a", "--plugin", "local", "--size", "10GiB"), 0, "created volume \"a\" ("+c.want+")\n", "")
	}
	f.sent()

	// The answer contains the exact number of bytes that the plugin reports, and the requested number if
	// the plugin made another one.
	for size, want := range map[int64]string{20e9: "18.6GiB, 20000000000 bytes", 20 << 30: "20GiB, 21474836480 bytes, asked for 20000000000 bytes", 0: "asked for 20000000000 bytes; the plugin reports no size"} {
		other := made
		other.Volume.Capacity, other.Volume.Spec.CapacityMin = size, 20e9
		f.on["POST /v1/volumes/a/create"] = answers(other)
		expect(t, r.volctl("volume", "create", "a", "--plugin", "local", "--size", "20G"), 0, "created volume \"a\" ("+want+")\n", "")
		expectSent(t, f, `POST /v1/volumes/a/create?wait=10m0s {"id":"a","plugin_id":"local","capacity_min":20000000000,"capabilities":[{"access_mode":"single-node-writer","attachment_mode":"file-system"}]}`)
	}
	f.on["POST /v1/volumes/a/create"] = answers(made)

	r.stdin = "id: a\nplugin_id: ebs\n---\nid: c\nplugin_id: ebz\n---\nid: b\nplugin_id: ebs\n"
	expect(t, r.volctl("volume", "create", "-"), 3, "created volume \"a\" (10GiB, 10737418240 bytes)\nvolume \"b\" is unchanged\n", "volctl: cannot create volume \"c\": no such plugin\nhint: near: \"ebs\"; all: volctl plugin list\n")
	r.stdin = "id: b\nplugin_id: ebs\n"
	expect(t, r.volctl("volume", "create", "-"), 0, "volume \"b\" is unchanged\n", "")
	expect(t, r.volctl("volume", "create", "-", "-q"), 0, "b\n", "")
	res := r.volctl("volume", "create", "-", "-o", "json")
	var results []api.VolumeResult
	if err := json.Unmarshal([]byte(res.stdout), &results); err != nil || len(results) != 1 || results[0].Outcome != "unchanged" {
		t.Errorf("json: %+v, %v", res, err)
	}
	r.stdin = "id: a\nplugin_id: ebs\n"
	expect(t, r.volctl("volume", "register", "-"), 0, "updated volume \"a\": reclaim: retain → delete\n", "")

	r.stdin = "id: a\nplugin: ebs\nsecrets: {x: [hunter2]}\n"
	res = r.volctl("volume", "register", "-")
	expect(t, res, 2, "", "volctl: cannot read the volume file: stdin:2:1: unknown field \"plugin\" (did you mean \"plugin_id\"?)\nstdin:3:14: a secret is a text")
	res = r.volctl("volume", "register", "-", "--json")
	expect(t, res, 2, "", `"details":{"column":"1","file":"stdin","line":"2"}`)
	if strings.Contains(res.stderr, "hunter2") {
		t.Error("the secret is in the error")
	}
}

func TestValidate(t *testing.T) {
	f := world()
	f.on["POST /v1/volumes/a/create"] = answers(api.VolumeResult{Outcome: "created", Volume: api.Volume{Spec: api.VolumeSpec{ID: "a"}}})
	f.on["PUT /v1/volumes/b"] = answers(api.VolumeResult{Outcome: "updated", Changes: []string{"x"}})
	f.on["PUT /v1/volumes/c"] = refuses(api.Error{Code: api.CodeRefused, Message: "name is immutable"})
	r := with(t, f)
	file := filepath.Join(shortDir(t), "v.yaml")
	text := "id: a\nplugin_id: ebs\n---\nid: b\nplugin_id: ebs\nexternal_id: x\n---\nid: c\nplugin_id: ebs\nexternal_id: y\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, r.volctl("volume", "validate", file), 4, "volume \"a\" would be created\nvolume \"b\" would be updated: x\n", "volctl: cannot use volume \"c\": name is immutable\n")
	sent := strings.Join(f.sent(), "\n")
	if strings.Count(sent, "?dry_run=true ") != 3 {
		t.Errorf("not all were dry: %s", sent)
	}
	expect(t, r.volctl("volume", "validate", file, "-offline", "-q"), 0, "a\nb\nc\n", "")
	expectSent(t, f)
	none := run{ctx: t.Context(), socket: filepath.Join(shortDir(t), "none")}
	expect(t, none.volctl("volume", "validate", file, "-offline", "--json"), 0, "[\n  {\n    \"id\": \"a\"\n  },\n  {\n    \"id\": \"b\"\n  },\n  {\n    \"id\": \"c\"\n  }\n]\n", "")
	expect(t, none.volctl("volume", "validate", file), 7, "", "(the file itself is well-formed): no agent answers on SOCKET: there is no such socket\nhint: start the agent for this socket, or name another socket with --socket or VOLCTL_SOCKET; or check the file alone with --offline\n")
	expect(t, none.volctl("volume", "validate", file+"x"), 2, "", "no such file or directory")
}

func TestInit(t *testing.T) {
	t.Chdir(shortDir(t))
	none := run{ctx: t.Context(), socket: "none"}
	expect(t, none.volctl("volume", "init"), 0, "wrote volume.yaml; edit it, then: volctl volume create volume.yaml\n", "")
	expect(t, none.volctl("volume", "init"), 4, "", "cannot write \"volume.yaml\": the file exists\nhint: volctl volume init ANOTHER-FILE\n")
	expect(t, none.volctl("volume", "validate", "volume.yaml", "--offline"), 0, "volume \"data\" is well-formed; the agent was not asked\n", "")
	expect(t, none.volctl("volume", "init", "no/such/dir"), 1, "", "no such file or directory")
	written, err := os.ReadFile("volume.yaml")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, none.volctl("volume", "init", "-"), 0, string(written), "")
}

func TestWait(t *testing.T) {
	f := world()
	r := with(t, f)
	expect(t, r.volctl("wait"), 0, "", "")
	expect(t, r.volctl("wait", "-plugin", "eb"), 0, "", "")
	expect(t, r.volctl("wait", "-volume", "web", "-for", "free"), 0, "", "")
	f.sent()
	f.on["GET /v1/plugins/nfs"] = func(r *http.Request) (any, error) {
		if r.URL.Query().Get("for") == "ready" {
			return nil, &api.Error{Code: api.CodeTimeout, Message: "it is backing-off", Hint: "volctl plugin logs nfs"}
		}
		return f.plugins[0], nil
	}
	expect(t, r.volctl("wait", "-plugin", "nfs", "-timeout", "3s"), 5, "", "volctl: cannot wait for plugin \"nfs\" to be ready: it is backing-off\nhint: volctl plugin logs nfs\n")
	f.on["GET /v1/volumes/data"] = func(r *http.Request) (any, error) {
		if q := r.URL.Query(); q.Get("for") == "free" && q.Get("wait") != "" {
			return f.volumes[0], nil
		}
		return f.volumes[2], nil
	}
	expect(t, r.volctl("wait", "-volume", "data", "-for", "free"), 0, "", "")
	expect(t, r.volctl("wait", "-volume", "dta", "-for", "free"), 3, "", `near: "data"`)
}

// TestWaitForTheAgent checks that "volctl wait" also waits for an agent that has not started yet.
func TestWaitForTheAgent(t *testing.T) {
	r := run{ctx: t.Context(), socket: filepath.Join(shortDir(t), "s")}
	expect(t, r.volctl("wait", "-timeout", "300ms"), 5, "", "volctl: cannot wait for the agent: after 300ms: no agent answers on SOCKET: there is no such socket\nhint: start the agent for this socket, or name another socket with --socket or VOLCTL_SOCKET\n")
	done := make(chan result)
	go func() { done <- r.volctl("wait", "-plugin", "ebs") }()
	select {
	case res := <-done:
		t.Fatalf("it did not wait: %+v", res)
	case <-time.After(2 * command.RetryEvery):
	}
	world().listen(t, r.socket)
	expect(t, <-done, 0, "", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	gone := run{ctx: ctx, socket: "none"}
	expect(t, gone.volctl("wait"), 1, "", "interrupted")
}

// TestFollow checks that Ctrl-C ends a stream with --follow without an error.
func TestFollow(t *testing.T) {
	for _, args := range []string{"events -f", "plugin logs nfs -f"} {
		f := world()
		ctx, cancel := context.WithCancel(t.Context())
		hold := func(r *http.Request) (any, error) {
			if r.URL.Query().Get("follow") != "true" {
				t.Errorf("%s does not follow", args)
			}
			cancel()
			<-r.Context().Done()
			return raw(""), nil
		}
		f.on["GET /v1/events"], f.on["GET /v1/plugins/nfs/logs"] = hold, hold
		r := with(t, f)
		expect(t, run{ctx: ctx, socket: r.socket}.volctl(strings.Fields(args)...), 0, "", "")
		f.on["GET /v1/events"], f.on["GET /v1/plugins/nfs/logs"] = answers(raw("")), answers(raw(""))
		expect(t, r.volctl(strings.Fields(args)...), 7, "", "the agent closed it")
	}
	f := world()
	r := with(t, f)
	r.volctl("events", "-n", "5", "-since", "1h", "-volume", "dat")
	expect(t, r.volctl("events", "-n", "5", "-since", "1h", "-volume", "web"), 0, r.volctl("events").stdout, "")
	f.sent()
	r.volctl("events", "-n", "5", "-since", "1h", "-volume", "gone")
	expectSent(t, f, "GET /v1/volumes/gone", "GET /v1/volumes", "GET /v1/events?n=5&since=2026-03-10T02%3A12%3A11Z&volume=gone")
	r.volctl("events", "--since", "2026-03-09T14:00:00Z")
	r.volctl("events", "--since", "90 min ago")
	expectSent(t, f, "GET /v1/events?since=2026-03-09T14%3A00%3A00Z", "GET /v1/events?since=2026-03-10T01%3A42%3A11Z")
	expect(t, r.volctl("events", "--since", "soon"), 2, "", "--since: \"soon\" is not a time; write a time such as")
	r.volctl("events", "-f", "-type", "staged", "--type=warning")
	expectSent(t, f, "GET /v1/events?follow=true&type=staged&type=warning")
	r.volctl("plugin", "logs", "nfs", "-n", "5")
	expectSent(t, f, "GET /v1/plugins/nfs", "GET /v1/plugins/nfs/logs?lines=5")
}

func TestCompletion(t *testing.T) {
	f := world()
	r := with(t, f)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if res := r.volctl("completion", shell); res.code != 0 || !strings.Contains(res.stdout, "volctl") || res.stderr != "" {
			t.Errorf("%s: exit %d, %.100q", shell, res.code, res.stderr)
		}
	}
	for args, want := range map[string]string{
		"volume claim ":                     "web[0]\nbackup_1\ndata\ndata-shared\n",
		"volume claim data ":                "",
		"volume detach data-shared ":        "a\nb\nc\n",
		"volume create x --plugin ":         "nfs\nebs\nrbd\n",
		"volume claim x --attachment-mode ": "file-system\nblock-device\n",
		"completion ":                       "bash\nzsh\nfish\n",
	} {
		res := r.volctl(append([]string{"__complete"}, strings.Split(args, " ")...)...)
		got, _, _ := strings.Cut(res.stdout, ":")
		if res.code != 0 || got != want {
			t.Errorf("%q: exit %d, got %q, want %q", args, res.code, got, want)
		}
	}
}

// TestDeleteChecksFirst checks that "volctl volume delete" asks no question if the volume cannot be
// deleted.
func TestDeleteChecksFirst(t *testing.T) {
	f := world()
	r := with(t, f)
	r.terminal, r.stdin = true, "yes\n"
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"volume", "delete", "gone"}, 3, `cannot delete volume "gone"`},
		{[]string{"volume", "delete", "gone", "--ignore-not-found"}, 0, ""},
		{[]string{"volume", "delete", "data"}, 4, "it was registered, not created here"},
		{[]string{"volume", "delete", "data", "--confirm=data"}, 4, `it is claimed by "postgres.service" (mounted)`},
		{[]string{"volume", "deregister", "gone"}, 3, `cannot deregister volume "gone"`},
		{[]string{"volume", "deregister", "gone", "--ignore-not-found"}, 0, ""},
	} {
		res := r.volctl(tt.args...)
		if res.code != tt.code || !strings.Contains(res.stderr, tt.says) || strings.Contains(res.stderr, "[y/N]") {
			t.Errorf("%v: exit %d, %s", tt.args, res.code, res.stderr)
		}
	}
	if asked := strings.Join(f.sent(), "\n"); strings.Contains(asked, "POST ") || strings.Contains(asked, "DELETE ") {
		t.Errorf("it was done: %s", asked)
	}
}
