package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/pluginfile"
)

// candidate is the driver's container of one workload.
type candidate struct {
	workload *workload
	pod      *podSpec
	at       int // index of the container
	tasks    []task
	forced   bool // a person named the container
}

func (c candidate) container() *container { return &c.pod.Containers[c.at] }

// node and controller report which services of the driver the pod uses.
func (c candidate) node() bool {
	return slices.Contains(c.tasks, nodeTask) || !c.controller() && c.workload.object.Kind == "DaemonSet"
}

func (c candidate) controller() bool { return slices.Contains(c.tasks, controllerTask) }

func (c candidate) name() string {
	return clean(c.workload.object.Metadata.Name + "/" + c.container().Name)
}

// origin returns the origin of a plugin file in words.
func (c candidate) origin() string {
	return fmt.Sprintf("container %s of %s", quoted([]string{c.container().Name}), c.workload.object)
}

// choose finds the driver's container of each workload. The names in only are the answer of a
// person. A container may have the form WORKLOAD/CONTAINER there.
func (n *notes) choose(workloads []*workload, only []string) ([]candidate, error) {
	var all []string
	var found []candidate
	used := map[string]bool{}
	for _, w := range workloads {
		here, err := n.inWorkload(w, only, used, &all)
		if err != nil {
			return nil, err
		}
		found = append(found, here...)
	}

	for _, name := range only {
		if !used[name] {
			return nil, &Error{Kind: Choice, Message: fmt.Sprintf("the manifest has no container %q, or it is a sidecar; its containers are %s", clean(name), quoted(all))}
		}
	}

	if len(found) == 0 && len(workloads) == 0 {
		return nil, invalid("the manifest has no DaemonSet, Deployment or StatefulSet, so it runs no driver")
	}
	if len(found) == 0 {
		return nil, &Error{Kind: Choice, Message: "no container of the manifest is recognised as a CSI driver; its containers are " + quoted(all)}
	}

	return n.withSidecars(found), nil
}

// inWorkload returns the driver's container of one workload, if it has one.
func (n *notes) inWorkload(w *workload, only []string, used map[string]bool, all *[]string) ([]candidate, error) {
	pod := &w.Spec.Template.Spec
	c := candidate{workload: w, pod: pod}
	var speaks, others, named []int
	for i, ctr := range pod.Containers {
		full := w.object.Metadata.Name + "/" + ctr.Name
		*all = append(*all, full)
		if t := sidecarTask(ctr); t != noTask {
			c.tasks = append(c.tasks, t)
			name, tag := imageName(ctr.Image)
			add(&n.Sidecars, "%s: %s (%s)", full, name, tag)
			continue
		}

		others = append(others, i)
		if speaksCSI(ctr) {
			speaks = append(speaks, i)
		}
		for _, name := range only {
			if name == ctr.Name || name == full {
				used[name] = true
				named = append(named, i)
			}
		}
	}

	pick := speaks
	switch {
	case len(only) > 0:
		pick = slices.Compact(named)
	case len(speaks) == 0 && len(c.tasks) > 0:
		pick = others // the driver knows its socket without being told
	}

	for _, i := range others {
		if !slices.Contains(pick, i) {
			add(&n.LeftOut, "container %s/%s", w.object.Metadata.Name, pod.Containers[i].Name)
		}
	}

	if len(pick) == 0 {
		return nil, nil
	}
	if len(pick) > 1 {
		var names []string
		for _, i := range pick {
			names = append(names, w.object.Metadata.Name+"/"+pod.Containers[i].Name)
		}
		return nil, &Error{Kind: Choice, Message: fmt.Sprintf("%s has several containers that may be the CSI driver: %s", w.object, quoted(names))}
	}

	c.at, c.forced = pick[0], len(only) > 0
	return []candidate{c}, nil
}

// withSidecars removes the candidates whose pods have no sidecar of CSI, if another pod has one. A
// pod without a sidecar does not belong to the driver itself. For example, it serves FUSE mounts.
func (n *notes) withSidecars(found []candidate) []candidate {
	bare := func(c candidate) bool { return len(c.tasks) == 0 && !c.forced }
	if !slices.ContainsFunc(found, func(c candidate) bool { return !bare(c) }) {
		return found
	}

	return slices.DeleteFunc(found, func(c candidate) bool {
		if bare(c) {
			add(&n.LeftOut, "container %s", c.name())
			add(&n.Warnings, "%s has no sidecar of CSI, so it is left out. If the driver needs it, run it as a service of the host", c.origin())
		}
		return bare(c)
	})
}

// isEndpointFlag matches the flags with which drivers take the address of their CSI socket.
var isEndpointFlag = regexp.MustCompile(`(?i)^--?(csi[-_]?)?(endpoint|address|socket)$|^--?server-socket$`).MatchString

// speaksCSI reports whether a container is told on which socket it must serve CSI.
func speaksCSI(c container) bool {
	for _, v := range c.Env {
		if v.Name == pluginfile.VarEndpoint {
			return true
		}
	}

	words := append(slices.Clone(c.Command), c.Args...)
	for i, word := range words {
		flag, value, assigned := strings.Cut(word, "=")
		if !assigned && i+1 < len(words) {
			value = words[i+1]
		}
		isSocket := strings.HasPrefix(value, "unix:") || strings.Contains(value, ".sock") || strings.Contains(value, "$(")
		if isEndpointFlag(flag) && isSocket {
			return true
		}
	}

	return false
}
