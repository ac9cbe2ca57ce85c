package cli

import (
	"net/http"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

func TestVolumeExpand(t *testing.T) {
	f := world()
	result := api.VolumeResult{Outcome: "expanded", Volume: api.Volume{Spec: api.VolumeSpec{ID: "data"}, Capacity: 20 << 30}}
	f.on["POST /v1/volumes/data/expand"] = func(*http.Request) (any, error) { return result, nil }
	r := with(t, f)

	expect(t, r.volctl("volume", "expand", "data", "20GiB"), 0, "expanded volume \"data\" to 20GiB (21474836480 bytes)\n", "")
	expect(t, r.volctl("volume", "expand", "data", "20GiB", "-q"), 0, "data\n", "")
	result.Volume.Expansion = &api.Expansion{Node: 20 << 30}
	expect(t, r.volctl("volume", "expand", "data", "20GiB"), 0,
		"expanded volume \"data\" to 20GiB (21474836480 bytes); its file system is expanded when it is mounted for writing\n", "")
	result = api.VolumeResult{Outcome: "unchanged", Volume: api.Volume{Capacity: 24 << 30}}
	expect(t, r.volctl("volume", "expand", "data", "20GiB"), 0, "volume \"data\" is unchanged: it has 24GiB (25769803776 bytes)\n", "")

	f.sent()
	result = api.VolumeResult{Outcome: "expanding", Volume: api.Volume{Capacity: 10 << 30, Expansion: &api.Expansion{Want: 20 << 30}}}
	expect(t, r.volctl("volume", "expand", "data", "20GiB", "--no-wait"), 0, "expanding volume \"data\" to 20GiB (21474836480 bytes); to wait for it, run the same command again\n", "")
	expectSent(t, f, `POST /v1/volumes/data/expand {"capacity_min":21474836480}`)
}

// TestVolumeExpandUsage checks that volctl refuses an invalid command line before it sends a
// request.
func TestVolumeExpandUsage(t *testing.T) {
	f := world()
	r := with(t, f)
	expect(t, r.volctl("volume", "expand", "data"), 2, "", "volume expand needs SIZE")
	expect(t, r.volctl("volume", "expand", "data", "20"), 2, "", `volctl: cannot expand volume "data": bad size "20": a number without a unit counts bytes, and must be at least 1048576`)
	expect(t, r.volctl("volume", "expand", "data", "0GiB"), 2, "", "it must be more than 0")
	expect(t, r.volctl("volume", "expand", "a/b", "1GiB"), 2, "", `volctl: cannot expand volume "a/b"`)
	expect(t, r.volctl("volume", "expand", "data", "1GiB", "--timeout", "0s"), 2, "", "--timeout must be more than 0")
	expectSent(t, f)
}

// TestVolumeExpandOverRestart checks that volctl repeats the request if the agent restarts.
func TestVolumeExpandOverRestart(t *testing.T) {
	f := world()
	tries := 0
	f.on["POST /v1/volumes/data/expand"] = func(*http.Request) (any, error) {
		if tries++; tries == 1 {
			return nil, http.ErrAbortHandler
		}
		return api.VolumeResult{Outcome: "expanded", Volume: api.Volume{Capacity: 2 << 30}}, nil
	}
	expect(t, with(t, f).volctl("volume", "expand", "data", "2GiB"), 0, "expanded volume \"data\" to 2GiB (2147483648 bytes)\n", "")
}
