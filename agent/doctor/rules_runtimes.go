package doctor

import (
	"fmt"
	"strings"

	"github.com/volagent/volagent/volmgr/volume"
)

// runtimes reports problems with volumes of docker and podman.
func runtimes(p Picture, f *findings) {
	for _, d := range p.Runtimes.Doubts {
		leaked(f, d)
	}

	locals(p, f)
	for runtime, err := range p.Runtimes.Errs {
		f.add(NotLooked, Warning, "agent", runtime).what("the agent cannot list the volumes of %s: %s", runtime, line(err)).
			then("the agent does not find local volumes that have the name of one of its own volumes").do("%s volume ls", runtime)
	}
}

// leaked reports references to a volume for which the runtime no longer has containers.
func leaked(f *findings, d Doubt) {
	about := d.Runtime + "/" + d.Name
	if d.Alloc != d.Runtime {
		about += "/" + d.Alloc
	}
	severity, then := Note, "the agent detaches the claim within two minutes"
	switch {
	case d.Kept != "" && d.Leaked < d.Of:
		then = "the agent drops them with the claim, when the last container of the volume has ended"
	case d.Kept != "":
		severity, then = Warning, "the claim of "+quote(d.Alloc)+" stays, and the volume stays mounted: "+d.Kept
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

// locals reports volumes on the host's disk that a runtime created under the name of one of the
// agent's volumes. Docker creates such a volume if the agent did not answer, or answered that the
// volume does not exist.
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
			what("%s has a volume %s of its own (driver local), but that name belongs to volume %s of the agent", l.Runtime, quote(l.Name), quote(id)).
			then("containers that use it read and write %s instead of the agent's volume; the data of the agent's volume does not change", strings.TrimSuffix(where, "/")).
			do("%s ps -a --filter volume=%s", l.Runtime, l.Name)
	}
}
