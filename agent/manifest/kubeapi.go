package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// isKubeFlag matches flags that tell a program where the API of Kubernetes is.
var isKubeFlag = regexp.MustCompile(`(?i)^--?(kube-?config([-_]?(file|path))?|in-?cluster(-config)?|run-in-cluster|kube-?api[a-z-]*|leader-election)$`).MatchString

// kubeVariables lists variables that tell a program where the API of Kubernetes is.
var kubeVariables = []string{"KUBECONFIG", "KUBE_CONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_MASTER"}

// builtinGroups lists the groups of Kubernetes' own resources. All other groups belong to custom
// resources.
var builtinGroups = []string{
	"", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apps", "authentication.k8s.io", "authorization.k8s.io", "autoscaling",
	"batch", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io", "extensions", "metrics.k8s.io",
	"networking.k8s.io", "node.k8s.io", "policy", "rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io",
	"security.openshift.io", "storage.k8s.io",
}

// sidecarGroups lists the groups of custom resources that sidecars need.
var sidecarGroups = []string{
	"snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io", "csi.storage.k8s.io", "cbt.storage.k8s.io", "csiaddons.openshift.io",
	"gateway.networking.k8s.io", "replication.storage.openshift.io",
}

// kubernetesSigns returns the signs that a driver needs the API of Kubernetes. The service account
// belongs to the whole pod, so a right counts as a sign only if no sidecar of the pod explains it.
func kubernetesSigns(c candidate, objects []*object, file string) (signs []string, err error) {
	ctr := c.container()
	for _, word := range append(slices.Clone(ctr.Command), ctr.Args...) {
		flag, value, _ := strings.Cut(word, "=")
		if isKubeFlag(flag) && value != "false" {
			add(&signs, "its argument %s", flag)
		}
	}

	for _, v := range ctr.Env {
		if slices.Contains(kubeVariables, strings.ToUpper(v.Name)) {
			add(&signs, "its variable %s", v.Name)
		}
	}

	for _, m := range ctr.VolumeMounts {
		if strings.HasPrefix(m.MountPath, "/var/run/secrets/kubernetes.io") {
			add(&signs, "its mount %s", m.MountPath)
		}
	}

	rules, account, err := rights(c, objects, file)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				if verbs := c.unexplained(group, resource, r.Verbs); len(verbs) > 0 {
					add(&signs, "the right of its service account %q to %s %s", account, strings.Join(verbs, ", "), resourceName(group, resource))
				}
			}
		}
	}

	return signs, nil
}

func resourceName(group, resource string) string {
	switch {
	case resource == "*":
		return "all resources of the group " + fmt.Sprintf("%q", group)
	case group == "":
		return resource
	default:
		return resource + "." + group
	}
}

// rights returns the rules that are bound to the service account of a pod.
func rights(c candidate, objects []*object, file string) (rules []rule, account string, err error) {
	account = c.pod.ServiceAccountName
	if account == "" {
		account = c.pod.ServiceAccount
	}
	if account == "" {
		return nil, "", nil
	}

	roles := map[string]role{}
	var bound []binding
	for _, o := range objects {
		switch o.Kind {
		case "Role", "ClusterRole":
			var r role
			err = o.into(file, &r)
			roles[o.Kind+"/"+o.Metadata.Name] = r
		case "RoleBinding", "ClusterRoleBinding":
			var b binding
			err = o.into(file, &b)
			bound = append(bound, b)
		}

		if err != nil {
			return nil, "", err
		}
	}

	for _, b := range bound {
		for _, s := range b.Subjects {
			if s.Kind == "ServiceAccount" && s.Name == account && sameNamespace(s.Namespace, c.workload.object.Metadata.Namespace) {
				rules = append(rules, roles[b.RoleRef.Kind+"/"+b.RoleRef.Name].Rules...)
			}
		}
	}

	return rules, account, nil
}

// sameNamespace reports whether two namespaces may be the same. A manifest may leave them out.
func sameNamespace(a, b string) bool { return a == b || a == "" || b == "" }

var reading = []string{"get", "list", "watch"}

// unexplained returns those verbs on a resource that are a sign that the driver itself needs the API
// of Kubernetes, and that no sidecar of the pod explains.
func (c candidate) unexplained(group, resource string, verbs []string) (left []string) {
	controllers := slices.Contains(c.tasks, controllerTask)
	var explained []string
	switch {
	case resource == "*" || group == "*":
	case slices.Contains(sidecarGroups, group) && len(c.tasks) > 0:
		return nil
	case !slices.Contains(builtinGroups, group):
	case group != "":
		return nil
	// Before csinodes existed, the registrar and the attacher wrote to nodes.
	case resource == "nodes" && len(c.tasks) > 0:
		explained = append([]string{"update", "patch"}, reading...)
	case resource == "pods" && controllers:
		explained = reading
	case resource != "nodes" && resource != "pods" && !strings.HasPrefix(resource, "nodes/") && !strings.HasPrefix(resource, "pods/"):
		return nil
	}

	for _, verb := range verbs {
		if !slices.Contains(explained, verb) {
			left = append(left, verb)
		}
	}

	return left
}
