package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// dockerFake replaces the docker command. It has the volume "app_data", whose containers the test sets.
type dockerFake struct {
	t        *testing.T
	dir      string
	src, dst string
}

func newDocker(t *testing.T) *dockerFake {
	t.Helper()
	d := &dockerFake{t: t, dir: t.TempDir()}
	d.src, d.dst = filepath.Join(d.dir, "src"), filepath.Join(d.dir, "dst")
	for _, dir := range []string{d.src, d.dst} {
		d.must(os.Mkdir(dir, 0o755))
	}
	d.must(os.WriteFile(filepath.Join(d.src, "file"), []byte("hello"), 0o640))
	script := `#!/bin/sh
cd ` + d.dir + `
case "$*" in
"context inspect"*) cat endpoint;;
"volume inspect app_data") cat volume;;
"volume inspect"*) echo "Error response from daemon: get $3: no such volume" >&2; exit 1;;
"ps --all --quiet --no-trunc --filter volume=app_data") cat ids;;
"container inspect"*) cat containers;;
*) echo "unexpected: $*" >&2; exit 1;;
esac
`
	d.must(os.WriteFile(filepath.Join(d.dir, "docker"), []byte(script), 0o755))
	t.Setenv("PATH", d.dir+":"+os.Getenv("PATH"))
	d.file("endpoint", "unix:///var/run/docker.sock\n")
	d.volume("local", d.src, "{}")
	d.containers()
	return d
}

func (d *dockerFake) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

func (d *dockerFake) file(name, text string) {
	d.t.Helper()
	d.must(os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600))
}

func (d *dockerFake) volume(driver, path, options string) {
	d.t.Helper()
	d.file("volume", fmt.Sprintf(`[{"Name":"app_data","Driver":%q,"Mountpoint":%q,"Labels":{"com.docker.compose.volume":"data"},"Options":%s}]`, driver, path, options))
}

// containers sets the containers of the volume, each with its name, state and "rw" or "ro".
func (d *dockerFake) containers(all ...[3]string) {
	d.t.Helper()
	ids, bodies := "", []string{}
	for i, c := range all {
		ids += fmt.Sprintln("id", i)[2:]
		bodies = append(bodies, fmt.Sprintf(`{"Name":"/%s","State":{"Status":%q},"Mounts":[{"Name":"app_data","RW":%v},{"Name":"else","RW":true}]}`, c[0], c[1], c[2] == "rw"))
	}
	d.file("ids", ids)
	d.file("containers", "["+strings.Join(bodies, ",")+"]")
}

// importWorld returns a fake agent with a free volume "new", whose claim is mounted at the target. The
// volume is listed only after it was created, if create is true.
func importWorld(d *dockerFake, create bool) *fake {
	f := world()
	free := api.Volume{Spec: api.VolumeSpec{ID: "new", PluginID: "ebs"}, State: api.StateFree, Capacity: 1 << 30}
	if !create {
		f.volumes = append(f.volumes, free)
	}
	f.on["POST /v1/volumes/new/create"] = answers(api.VolumeResult{Outcome: api.OutcomeCreated, Volume: free})
	f.on["PUT /v1/volumes/new/claims/import-docker"] = func(*http.Request) (any, error) { return taken("new", "import-docker", d.dst), nil }
	f.on["DELETE /v1/volumes/new/claims/import-docker"] = answers(api.Done{})
	return f
}

// changes returns the methods and paths of the requests that change something.
func changes(f *fake) (all []string) {
	for _, line := range f.sent() {
		if !strings.HasPrefix(line, "GET ") {
			path, _, _ := strings.Cut(line, "?")
			all = append(all, strings.Join(strings.Fields(path)[:2], " "))
		}
	}
	return all
}

// TestImportDocker imports into an existing volume. The claim must name this process as its owner, and
// must be gone at the end. A second import is refused, because the volume has data.
func TestImportDocker(t *testing.T) {
	d := newDocker(t)
	d.containers([3]string{"old", "exited", "rw"}, [3]string{"reader", "running", "ro"})
	f := importWorld(d, false)
	r := with(t, f)
	got := r.volctl("volume", "import-docker", "app_data", "--into", "new")
	expect(t, got, 0, `imported docker volume "app_data" into volume "new": 1 file, 5B; both are equal
stopped containers that still use the docker volume: "old"
next: in the compose file, use the new volume, and make the containers again (docker compose up -d):
  volumes:
    data: {driver: csi, name: "new"}
docker still has the old volume; remove it when the new one works: docker volume rm app_data
`, "")
	sent := f.sent()
	var claim api.ClaimRequest
	for _, line := range sent {
		if body, ok := strings.CutPrefix(line, "PUT /v1/volumes/new/claims/import-docker"); ok {
			_, body, _ = strings.Cut(body, " ")
			d.must(json.Unmarshal([]byte(body), &claim))
		}
	}
	if claim.Owner.Kind != api.OwnerPID || claim.Owner.PID != os.Getpid() || !strings.HasPrefix(sent[len(sent)-1], "DELETE /v1/volumes/new/claims/import-docker?force=true") {
		t.Errorf("sent %q", sent)
	}
	if raw, err := os.ReadFile(filepath.Join(d.dst, "file")); err != nil || string(raw) != "hello" {
		t.Errorf("%q, %v", raw, err)
	}
	if raw, err := os.ReadFile(filepath.Join(d.src, "file")); err != nil || string(raw) != "hello" {
		t.Errorf("the docker volume: %q, %v", raw, err)
	}
	if _, err := os.Lstat(filepath.Join(d.dst, ".volagent-import")); !os.IsNotExist(err) {
		t.Errorf("the marker remains: %v", err)
	}

	expect(t, r.volctl("volume", "import-docker", "app_data", "--into", "new"), 4, "", `the volume is not empty: it contains "file"`)
	if sent := changes(f); len(sent) != 2 || sent[1] != "DELETE /v1/volumes/new/claims/import-docker?force=true&wait=1m20s" && !strings.HasPrefix(sent[1], "DELETE ") {
		t.Errorf("the claim remains: %q", sent)
	}
}

// TestImportDockerNew creates the target. Its size depends on the data.
func TestImportDockerNew(t *testing.T) {
	d := newDocker(t)
	f := importWorld(d, true)
	got := with(t, f).volctl("volume", "import-docker", "app_data", "--id", "new", "--plugin", "ebs", "-o", "json")
	var done map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &done); err != nil || got.code != 0 || done["created"] != true || done["volume"] != "new" || done["files"] != 1.0 {
		t.Errorf("%+v, %v", got, err)
	}
	if sent := strings.Join(f.sent(), "\n"); !strings.Contains(sent, `"capacity_min":67108864`) {
		t.Errorf("sent %s", sent)
	}
}

// TestImportDockerContinues begins with the result of an import that did not finish.
func TestImportDockerContinues(t *testing.T) {
	d := newDocker(t)
	marker := filepath.Join(d.dst, ".volagent-import")
	d.must(os.Mkdir(marker, 0o700))
	d.must(os.WriteFile(filepath.Join(marker, "source.json"), []byte(`{"docker_volume":"other"}`), 0o600))
	d.must(os.WriteFile(filepath.Join(d.dst, "file"), []byte("hel"), 0o600))
	r := with(t, importWorld(d, false))
	expect(t, r.volctl("volume", "import-docker", "app_data", "--into", "new"), 4, "", `it contains an unfinished import of docker volume "other"`)
	d.must(os.WriteFile(filepath.Join(marker, "source.json"), []byte(`{"docker_volume":"app_data"}`), 0o600))
	if got := r.volctl("volume", "import-docker", "app_data", "--into", "new"); got.code != 0 || !strings.HasPrefix(got.stdout, `continued the import of docker volume "app_data"`) {
		t.Errorf("%+v", got)
	}
	if raw, err := os.ReadFile(filepath.Join(d.dst, "file")); err != nil || string(raw) != "hello" {
		t.Errorf("%q, %v", raw, err)
	}

	// Data that no import has made, which the docker volume does not have.
	d.must(os.Mkdir(marker, 0o700))
	d.must(os.WriteFile(filepath.Join(marker, "source.json"), []byte(`{"docker_volume":"app_data"}`), 0o600))
	d.must(os.WriteFile(filepath.Join(d.dst, "more"), nil, 0o600))
	got := r.volctl("volume", "import-docker", "app_data", "--into", "new")
	if got.code != 1 || !strings.Contains(got.stderr, `"more" exists only in the copy`) || !strings.Contains(got.stderr, "volctl volume import-docker app_data --into=new") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Lstat(marker); err != nil {
		t.Errorf("the marker of an unfinished import is gone: %v", err)
	}
}

// TestImportDockerRefused checks everything that prevents an import. The command must then change
// nothing.
func TestImportDockerRefused(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(d *dockerFake, f *fake)
		args    string
		code    int
		words   string
	}{
		"running": {func(d *dockerFake, _ *fake) {
			d.containers([3]string{"web", "running", "rw"}, [3]string{"new", "created", "rw"}, [3]string{"old", "exited", "rw"})
		}, "--into new", 4, "containers use it, and could change it during the copy: \"web\" (running), \"new\" (created)\nhint: docker stop web new\n"},
		"no volume":  {nil, "--into new", 3, "docker has no volume with this name"},
		"other host": {func(d *dockerFake, _ *fake) { d.file("endpoint", "ssh://host\n") }, "--into new", 4, "the docker command uses the daemon at ssh://host"},
		"plugin that is not mounted": {func(d *dockerFake, _ *fake) { d.volume("rclone", "", "{}") }, "--into new", 4,
			"its data is not mounted on this host: docker mounts a volume of driver \"rclone\" only while a container uses it\nhint: start a container that only reads it, and repeat the import: docker run -d --rm --name hold-app_data -v app_data:/data:ro IMAGE sleep 1d\n"},
		"plugin whose directory is empty": {func(d *dockerFake, _ *fake) { d.volume("rclone", d.src, "{}") }, "--into new", 4, "its data is not mounted on this host"},
		"device that is not mounted":      {func(d *dockerFake, _ *fake) { d.volume("local", d.src, `{"device":"host:/x","type":"nfs"}`) }, "--into new", 4, "its data is not mounted on this host"},
		"claimed":                         {nil, "--into data", 4, `volume "data" is claimed by "postgres.service" (mounted)`},
		"too small": {func(d *dockerFake, f *fake) {
			f.volumes[len(f.volumes)-1].Capacity = 1
		}, "--into new", 4, `volume "new" has 1B, and the data needs `},
		"no target":          {nil, "--into none", 3, "no such volume"},
		"a target that is":   {nil, "--id new --plugin ebs", 4, `volume "new" exists already`},
		"a size too small":   {nil, "--id fresh --plugin ebs --size 1KiB", 2, "--size is 1KiB, and the data needs"},
		"neither":            {nil, "", 2, "--into ID is needed for an existing volume, or --plugin P or --class C"},
		"both":               {nil, "--into new --plugin ebs", 2, "--into and --plugin exclude each other"},
		"a block device":     {nil, "--plugin ebs --attachment-mode block-device", 2, "an import needs --attachment-mode file-system"},
		"daemon that is off": {func(d *dockerFake, _ *fake) { d.must(os.Remove(filepath.Join(d.dir, "ids"))) }, "--into new", 1, "cannot tell which containers use it"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDocker(t)
			f := importWorld(d, false)
			if c.prepare != nil {
				c.prepare(d, f)
			}
			source := "app_data"
			if name == "no volume" {
				source = "gone"
			}
			expect(t, with(t, f).volctl(append([]string{"volume", "import-docker", source}, strings.Fields(c.args)...)...), c.code, "", c.words)
			if sent := changes(f); len(sent) > 0 {
				t.Errorf("sent %q", sent)
			}
		})
	}
}
