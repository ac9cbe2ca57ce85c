package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/mount"
)

// TestCreateWithClass checks the requests for volumes of a class. They contain only the fields that the user
// has given, because the class decides about the rest.
func TestCreateWithClass(t *testing.T) {
	f := world()
	f.on["POST /v1/volumes/a/create"] = answers(api.VolumeResult{Outcome: "created", Volume: api.Volume{Spec: api.VolumeSpec{ID: "a"}, Class: "fast"}})
	r := with(t, f)
	for args, want := range map[string]string{
		"a --class fast":                                  `{"id":"a","plugin_id":"","class":"fast"}`,
		"a --class fast --size 20GiB":                     `{"id":"a","plugin_id":"","class":"fast","capacity_min":21474836480}`,
		"a --class fast --access-mode single-node-writer": `{"id":"a","plugin_id":"","class":"fast","capabilities":[{"access_mode":"single-node-writer","attachment_mode":""}]}`,
		"a --class fast --param x=y --fs-type xfs":        `{"id":"a","plugin_id":"","class":"fast","mount_options":{"fs_type":"xfs"},"parameters":{"x":"y"}}`,
	} {
		expect(t, r.volctl(append([]string{"volume", "create"}, strings.Fields(args)...)...), 0, "created volume \"a\"\n", "")
		expectSent(t, f, "POST /v1/volumes/a/create?wait=10m0s "+want)
	}

	claim := filepath.Join(t.TempDir(), "pvc.yaml")
	text := "kind: PersistentVolumeClaim\nmetadata: {name: a}\nspec:\n  storageClassName: fast\n  accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: 8Gi}}\n"
	if err := os.WriteFile(claim, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, r.volctl("volume", "create", claim), 0, "created volume \"a\"\n", "")
	expectSent(t, f, `POST /v1/volumes/a/create?wait=10m0s {"id":"a","plugin_id":"","class":"fast","capacity_min":8589934592,"capabilities":[{"access_mode":"single-node-writer","attachment_mode":"file-system"}]}`)

	expect(t, r.volctl("volume", "create", "a", "--class", "fast", "--plugin", "ebs"), 2, "", "--class and --plugin exclude each other: the class names the plugin")
	expect(t, r.volctl("volume", "create", "a", "--class", "a/b"), 2, "", "bad class id \"a/b\"")
	expectSent(t, f)
	f.on["POST /v1/volumes/a/create"] = refuses(api.Error{Code: api.CodeNotFound, Message: `no class "fats"; the classes are broken, fast, gp3`, Hint: "volctl class list"})
	expect(t, r.volctl("volume", "create", "a", "--class", "fats"), 3, "", "no class \"fats\"; the classes are broken, fast, gp3\nhint: near: \"fast\"; all: volctl class list\n")
}

// TestMountWithClass checks that a mount with a class creates a missing volume, and leaves an existing
// volume as it is.
func TestMountWithClass(t *testing.T) {
	f := world()
	r, s, dir := mountRun(t, f)
	created := 0
	f.on["POST /v1/volumes/new/create"] = func(r *http.Request) (any, error) {
		created++
		return api.VolumeResult{Outcome: "created", Volume: api.Volume{Spec: api.VolumeSpec{ID: "new"}}}, nil
	}

	alloc := mount.UnitName(dir)
	claims(t, f, s, "new", alloc)
	res := r.volctl("mount", "new", dir, "-o", "class=fast,size=20GiB")
	if sent := strings.Join(f.sent(), "\n"); created != 1 || res.code != 0 || !strings.Contains(res.stderr, `created volume "new" with class "fast"`) ||
		!strings.Contains(sent, `"class":"fast","capacity_min":21474836480,"capabilities":[{"access_mode":"","attachment_mode":"file-system"}]}`) {
		t.Errorf("%+v, %d created, sent\n%s", res, created, sent)
	}

	s.table = ""
	claims(t, f, s, "data", alloc)
	if res := r.volctl("mount", "data", dir, "-o", "class=gone"); res.code != 0 || strings.Contains(strings.Join(f.sent(), "\n"), "/create") {
		t.Errorf("an existing volume: %+v", res)
	}

	s.table = ""
	f.on["POST /v1/volumes/new/create"] = refuses(api.Error{Code: api.CodeRefused, Message: "2TiB is more than class \"fast\" permits: at most 1TiB"})
	expect(t, r.volctl("mount", "new", dir, "-o", "class=fast,size=2TiB"), 4, "", "cannot mount volume \"new\" at "+dir+": cannot create it with class \"fast\": 2TiB is more")
	if sent := strings.Join(f.sent(), "\n"); strings.Contains(sent, "/claims/") {
		t.Errorf("it claimed a volume that does not exist:\n%s", sent)
	}
}
