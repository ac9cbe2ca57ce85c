package container

import (
	"errors"
	"maps"
	"slices"
	"testing"
)

// TestUsers checks that Users describes all containers of a volume. A container counts as a reader only
// if none of its mounts of this volume is writable.
func TestUsers(t *testing.T) {
	r := program(t, "docker", `case "$*" in
"ps --all --quiet --no-trunc --filter volume=data") echo a; echo b; echo c; echo d;;
"ps "*) ;;
"container inspect a b c d") echo '[
{"Name":"/writer","State":{"Status":"running"},"Mounts":[{"Name":"data","RW":true},{"Name":"x","RW":false}]},
{"Name":"/reader","State":{"Status":"running"},"Mounts":[{"Name":"data","RW":false},{"Name":"x","RW":true}]},
{"Name":"/both","State":{"Status":"exited"},"Mounts":[{"Name":"data","RW":false},{"Name":"data","RW":true}]},
{"Name":"/odd","State":{"Status":"created"},"Mounts":[]}]';;
*) exit 1;;
esac`)
	want := []User{{"writer", "running", false, false}, {"reader", "running", false, true}, {"both", "exited", true, false}, {"odd", "created", false, false}}
	if got, err := r.Users(t.Context(), "data"); err != nil || !slices.Equal(got, want) {
		t.Errorf("they are %+v, %v", got, err)
	}
	if got, err := r.Users(t.Context(), "none"); err != nil || len(got) > 0 {
		t.Errorf("they are %+v, %v", got, err)
	}
}

// TestFindVolume checks the description of a volume, and the error for a volume that does not exist.
func TestFindVolume(t *testing.T) {
	r := program(t, "docker", `case "$*" in
"volume inspect data") echo '[{"Name":"data","Driver":"local","Mountpoint":"/m","Labels":{"a":"b"},"Options":{"type":"nfs"}}]';;
"volume inspect two") echo '[{},{}]';;
"volume inspect odd") echo '{';;
"volume inspect off") echo "Cannot connect to the Docker daemon" >&2; exit 1;;
"context inspect --format {{.Endpoints.docker.Host}}") echo unix:///s;;
*) echo "Error response from daemon: get $3: no such volume" >&2; exit 1;;
esac`)
	v, err := r.FindVolume(t.Context(), "data")
	if err != nil || v.Name != "data" || v.Driver != "local" || v.Path != "/m" || !maps.Equal(v.Labels, map[string]string{"a": "b"}) || !maps.Equal(v.Options, map[string]string{"type": "nfs"}) {
		t.Errorf("it is %+v, %v", v, err)
	}
	for name, none := range map[string]bool{"gone": true, "two": false, "odd": false, "off": false} {
		if v, err := r.FindVolume(t.Context(), name); err == nil || errors.Is(err, ErrNoVolume) != none {
			t.Errorf("%s is %+v, %v", name, v, err)
		}
	}
	if got, err := r.Endpoint(t.Context()); err != nil || got != "unix:///s" {
		t.Errorf("the endpoint is %q, %v", got, err)
	}
}
