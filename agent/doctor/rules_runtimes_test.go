package doctor

import (
	"errors"
	"strings"
	"testing"

	"github.com/volagent/volagent/volmgr/volume"
)

// TestRuntimeRules checks the findings about container runtimes on a host without other problems.
func TestRuntimeRules(t *testing.T) {
	named := []volume.RuntimeVolume{{Runtime: "docker", Name: "mine", VolumeID: "data"}}
	doubt := func(leaked, of int, kept string) Runtimes {
		return Runtimes{Doubts: []Doubt{{Runtime: "docker", Name: "mine", Volume: "data", Alloc: "docker", Leaked: leaked, Of: of, Kept: kept}}}
	}
	for name, c := range map[string]struct {
		has      Runtimes
		id       string // the id of the expected finding; empty if none is expected
		severity Severity
		says     []string
	}{
		"about to go":       {doubt(11, 11, ""), "runtime-reference:docker/mine", Note, []string{`docker has no container for any of its 11 references to volume "data", which it knows as "mine"`, "within two minutes", "docker ps -a --filter volume=mine"}},
		"one":               {doubt(1, 1, ""), "runtime-reference:docker/mine", Note, []string{"no container for its reference to"}},
		"some, one in use":  {doubt(2, 3, "process 7"), "runtime-reference:docker/mine", Note, []string{"2 of its 3 references", "when the last container of the volume has ended"}},
		"kept":              {doubt(1, 1, "cannot tell which containers use it: no daemon"), "runtime-reference:docker/mine", Warning, []string{`the claim of "docker" stays`, "no daemon"}},
		"exclusive":         {Runtimes{Doubts: []Doubt{{Runtime: "docker", Name: "mine", Volume: "data", Alloc: "docker-1", Leaked: 1, Of: 1}}}, "runtime-reference:docker/mine/docker-1", Note, nil},
		"local, known":      {Runtimes{Named: named, Locals: []Local{{"docker", "mine", "/l/mine/_data"}}}, "runtime-local-volume:docker/mine", Problem, []string{`docker has a volume "mine" of its own (driver local), but that name belongs to volume "data"`, "read and write /l/mine/_data instead of the agent's volume"}},
		"local, registered": {Runtimes{Locals: []Local{{"podman", "data", ""}}}, "runtime-local-volume:podman/data", Warning, []string{"read and write the host's disk", "podman ps -a --filter volume=data"}},
		"local, another":    {Runtimes{Named: named, Locals: []Local{{"docker", "other", ""}, {"podman", "mine", ""}}}, "", "", nil},
		"no answer":         {Runtimes{Errs: map[string]error{"docker": errors.New("no daemon")}}, "not-looked:docker", Warning, []string{"cannot list the volumes of docker: no daemon"}},
	} {
		p := well()
		p.Runtimes = c.has
		found := Judge(p)
		if c.id == "" {
			if len(found) > 0 {
				t.Errorf("%s: found %+v", name, found)
			}
			continue
		}
		if len(found) != 1 || found[0].ID != c.id || found[0].Severity != c.severity {
			t.Errorf("%s: found %+v, want %s, a %s", name, found, c.id, c.severity)
			continue
		}
		for _, want := range c.says {
			if words := strings.Join([]string{found[0].What, found[0].Then, found[0].Do}, "\n"); !strings.Contains(words, want) {
				t.Errorf("%s: %q, want %q in it", name, words, want)
			}
		}
	}
}
