package manifest

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// These keys of Kubernetes have an effect here. All other keys are left out.
var (
	usedOfContainer = []string{"name", "image", "imagePullPolicy", "command", "args", "env", "envFrom", "volumeMounts", "securityContext"}
	usedOfSecurity  = []string{"privileged", "allowPrivilegeEscalation", "capabilities"}
	usedOfPod       = []string{"containers", "initContainers", "volumes", "hostNetwork", "hostPID", "securityContext", "serviceAccount", "serviceAccountName"}
	usedOfWorkload  = []string{"template", "selector"}
	usedKinds       = []string{"DaemonSet", "Deployment", "StatefulSet", "ConfigMap", "Secret", "CSIDriver"}
)

// leaveOut records the content of the manifest that has no effect here.
func (n *notes) leaveOut(objects []*object, found []candidate) {
	for _, c := range found {
		spec := child(c.workload.object.node, "spec")
		pod := child(spec, "template", "spec")
		containers := child(pod, "containers")
		if containers != nil && containers.Kind == yaml.SequenceNode && c.at < len(containers.Content) {
			ctr := resolve(containers.Content[c.at])
			unused := without(keys(ctr), usedOfContainer)
			for _, key := range without(keys(child(ctr, "securityContext")), usedOfSecurity) {
				unused = append(unused, "securityContext."+key)
			}
			n.unused(unused, "of container "+c.name())
		}

		for _, init := range c.pod.InitContainers {
			add(&n.LeftOut, "init container %s/%s (%s)", c.workload.object.Metadata.Name, init.Name, init.Image)
		}

		unused := without(keys(pod), usedOfPod)
		for _, key := range keys(child(pod, "securityContext")) {
			unused = append(unused, "securityContext."+key)
		}
		unused = append(unused, without(keys(spec), usedOfWorkload)...)
		n.unused(unused, "of "+c.workload.object.String())
	}

	n.leaveOutObjects(objects, found)
}

func (n *notes) unused(keys []string, where string) {
	if len(keys) > 0 {
		add(&n.LeftOut, "%s %s", strings.Join(keys, ", "), where)
	}
}

// leaveOutObjects records the workloads without a driver, and the number of objects of each kind
// that are not used.
func (n *notes) leaveOutObjects(objects []*object, found []candidate) {
	count := map[string]int{}
	for _, o := range objects {
		runs := slices.ContainsFunc(found, func(c candidate) bool { return c.workload.object == o })
		switch {
		case runs:
		case slices.Contains(usedKinds[:3], o.Kind):
			add(&n.LeftOut, "%s", o)
		case !slices.Contains(usedKinds, o.Kind):
			count[o.Kind]++
		}
	}

	for _, kind := range sortedKeys(count) {
		times := ""
		if count[kind] > 1 {
			times = fmt.Sprintf(" (%d)", count[kind])
		}
		add(&n.LeftOut, "objects of the kind %s%s", kind, times)
	}
}

// without returns those words that are not in another list.
func without(words, other []string) []string {
	return slices.DeleteFunc(words, func(word string) bool { return slices.Contains(other, word) })
}
