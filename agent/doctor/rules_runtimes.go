package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/volagent/volagent/volmgr/volume"
)

// Runtimes holds the known facts about the container runtimes.
type Runtimes struct {
	Named  []volume.RuntimeVolume // the agent's records of the runtimes' volumes
	Doubts []Doubt
	Locals []Local
	Errs   map[string]error // why a runtime's own volumes are unknown, by runtime
}

// Doubt is about references to a volume that no container explains.
type Doubt struct {
	Runtime string
	Name    string // the runtime's name for the volume
	Volume  string
	Alloc   string
	Since   time.Time
	Leaked  int    // references that no container explains
	Of      int    // all references of the claim
	Kept    string // why the claim stays; empty if the agent is about to detach it
}

// Local is a volume of a runtime's own driver "local".
type Local struct {
	Runtime string
	Name    string
	Path    string // the directory of its files; may be empty
}

// runtimes checks volumes of docker and podman.
func runtimes(p Picture, f *findings) {
	for _, d := range p.Runtimes.Doubts {
		leaked(f, d)
	}

	locals(p, f)
	for runtime, err := range p.Runtimes.Errs {
		f.add(NotLooked, Warning, "agent", runtime).what("the volumes of %s cannot be listed: %s", runtime, line(err)).
			then("volumes of its own that stand in for one of the agent's are not found").do("%s volume ls", runtime)
	}
}

// leaked reports references whose containers are gone.
func leaked(f *findings, d Doubt) {
	about := d.Runtime + "/" + d.Name
	if d.Alloc != d.Runtime {
		about += "/" + d.Alloc
	}
	severity, then := Note, "the agent detaches the claim within two minutes"
	switch {
	case d.Kept != "" && d.Leaked < d.Of:
		then = "they go with the claim, when the last container of the volume has ended"
	case d.Kept != "":
		severity, then = Warning, "the claim of "+quote(d.Alloc)+" stays, and the volume mounted: "+d.Kept
	}

	f.add(RuntimeReference, severity, d.Volume, about).
		what("%s has no container for %s to volume %s, which it knows as %s", d.Runtime, ofReferences(d), quote(d.Volume), quote(d.Name)).
		then("%s", then).do("%s ps -a --filter volume=%s", d.Runtime, d.Name)
}

func ofReferences(d Doubt) string {
	switch {
	case d.Of == 1:
		return "its reference"
	case d.Leaked == d.Of:
		return fmt.Sprintf("any of its %d references", d.Of)
	default:
		return fmt.Sprintf("%d of its %d references", d.Leaked, d.Of)
	}
}

// locals reports volumes that a runtime created on the host's disk under the name of one of the
// agent's volumes. Docker does so if it was told that the volume does not exist, or if it could not
// ask.
func locals(p Picture, f *findings) {
	named := map[string]string{}
	for _, v := range p.Runtimes.Named {
		named[v.Key()] = v.VolumeID
	}

	registered := map[string]bool{}
	for _, v := range p.Volumes {
		registered[v.Record.Volume.ID] = true
	}

	for _, l := range p.Runtimes.Locals {
		id, known := named[volume.RuntimeKey(l.Runtime, l.Name)]
		severity := Problem
		if !known {
			if !registered[l.Name] {
				continue
			}
			id, severity = l.Name, Warning
		}

		where := "the host's disk"
		if l.Path != "" {
			where = l.Path
		}
		f.add(RuntimeLocal, severity, id, l.Runtime+"/"+l.Name).
			what("%s has a volume %s of its own (driver local), and volume %s has that name", l.Runtime, quote(l.Name), quote(id)).
			then("containers that use it read and write %s, and not the volume; the data of the volume is not touched", strings.TrimSuffix(where, "/")).
			do("%s ps -a --filter volume=%s", l.Runtime, l.Name)
	}
}
