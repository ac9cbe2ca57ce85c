package manifest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/pluginfile"
)

var update = flag.Bool("update", false, "write the golden files")

// shown returns an outcome as a text for golden files.
func shown(r *Result, err error) string {
	var b strings.Builder
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return "not an *Error: " + err.Error() + "\n"
		}
		return fmt.Sprintf("error of the kind %d: %s\n", e.Kind, e.Message)
	}

	fmt.Fprintf(&b, "plugin %s\n", r.ID)
	list := func(title string, items []string) {
		if len(items) > 0 {
			fmt.Fprintf(&b, "\n%s:\n- %s\n", title, strings.Join(items, "\n- "))
		}
	}
	list("sidecars", r.Sidecars)
	var required, secrets []string
	for _, v := range r.Required {
		required = append(required, v.Name+": "+v.Reason)
	}
	for _, s := range r.Secrets {
		secrets = append(secrets, s.Path+": "+s.Source+", for "+s.Variable)
	}
	list("required", required)
	list("secrets", secrets)
	list("make", r.Make)
	list("images", r.Images)
	list("left out", r.LeftOut)
	list("warnings", r.Warnings)
	for _, f := range r.Files {
		fmt.Fprintf(&b, "\n=== %s (%s)\n%s", f.Name, f.Container, f.Text)
	}

	return b.String()
}

// manifests returns the manifests in testdata.
func manifests(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.yaml")
	configs, _ := filepath.Glob("testdata/*.json")
	if err != nil || len(paths) < 8 || len(configs) < 1 {
		t.Fatalf("%d manifests, %d configs, %v", len(paths), len(configs), err)
	}
	return append(paths, configs...)
}

// TestGolden compares the outcome of each manifest in testdata with the file beside it. The word
// hunter2 stands for the values of secrets.
func TestGolden(t *testing.T) {
	for _, path := range manifests(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}

			r, err := Import(data, Options{File: filepath.Base(path)})
			if err == nil {
				for _, f := range r.Files {
					if _, def, err := pluginfile.Parse(f.Name, f.Text); err != nil || !def.Disabled {
						t.Errorf("%s: %+v, %v", f.Name, def, err)
					}
				}
			}
			got := shown(r, err)
			if strings.Contains(got, "hunter2") || strings.Contains(got, "aHVudGVyMg") {
				t.Errorf("a secret is in the outcome:\n%s", got)
			}

			golden := path + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || got != string(want) {
				t.Errorf("%v; got\n%s\nwant\n%s", err, got, want)
			}
		})
	}
}

// daemon returns a DaemonSet with one container that speaks CSI. The fields are lines of the
// container, and volumes are lines of the pod.
func daemon(fields, volumes string) string {
	return `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: x-csi-node}
spec:
  template:
    spec:
      containers:
        - name: plugin
          image: r.example.com/x:1
          args: [--endpoint=unix:///csi/csi.sock]
          ` + strings.ReplaceAll(fields, "\n", "\n          ") + "\n" + volumes
}

// TestRefused checks the errors, their kinds, and that none contains the value of a secret.
func TestRefused(t *testing.T) {
	golden := func(name string) string {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	two := strings.Replace(daemon("", ""), "      containers:\n", "      containers:\n        - {name: other, image: o, args: [--endpoint, unix:///o.sock]}\n", 1)
	for name, tt := range map[string]struct {
		text string
		opts Options
		kind Kind
		want string
	}{
		"empty":          {"", Options{}, Invalid, "m.yaml contains no object of Kubernetes, and is no config.json"},
		"comments":       {"# x\n---\n---\n", Options{}, Invalid, "contains no object of Kubernetes"},
		"no yaml":        {"a: [\n", Options{}, Invalid, "m.yaml is not YAML: line 1: did not find"},
		"no object":      {"a: b\n", Options{}, Invalid, "m.yaml:1: this document is not an object of Kubernetes: it has no kind"},
		"text":           {"hello\n", Options{}, Invalid, "m.yaml:1: this document is not"},
		"unknown anchor": {"a: *hunter2\n", Options{}, Invalid, "an alias refers to no anchor"},
		"template":       {"kind: DaemonSet\nmetadata:\n  name: {{ .Release.Name }}\n", Options{}, Template, "m.yaml:3: this is a template"},
		"quoted":         {"kind: DaemonSet\nmetadata:\n  name: \"{{ x }}\"\n", Options{}, Template, "m.yaml:3: this is a template"},
		"block":          {"{{- if .Values.x }}\nkind: DaemonSet\n{{- end }}\n", Options{}, Template, "m.yaml: this is a template"},
		"template key":   {"kind: DaemonSet\n\"{{ x }}\": y\n", Options{}, Template, "m.yaml:2: this is a template"},
		"kustomize":      {"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n", Options{}, Template, "m.yaml:1: a Kustomization only refers to manifests"},
		"no workload":    {"kind: CSIDriver\nmetadata: {name: x}\n", Options{}, Invalid, "the manifest has no DaemonSet, Deployment or StatefulSet"},
		"no driver":      {"kind: Deployment\nmetadata: {name: web}\nspec: {template: {spec: {containers: [{name: a, image: nginx}, {name: b, image: redis}]}}}\n", Options{}, Choice, `no container of the manifest is recognised as a CSI driver; its containers are "web/a", "web/b"`},
		"two drivers":    {two, Options{}, Choice, `DaemonSet "x-csi-node" has several containers that may be the CSI driver: "x-csi-node/other", "x-csi-node/plugin"`},
		"two nodes":      {daemon("", "") + "---\n" + strings.Replace(daemon("command: [other]", ""), "x-csi-node", "y-csi-node", 1), Options{}, Choice, `several containers that may be the node part of the CSI driver: "x-csi-node/plugin", "y-csi-node/plugin"`},
		"two controllers": {strings.Replace(daemon("", ""), "DaemonSet", "Deployment", 1) + "---\n" + strings.NewReplacer("x-csi-node", "y", "DaemonSet", "Deployment").Replace(daemon("command: [other]", "")), Options{}, Choice,
			`several containers that may be the controller part of the CSI driver: "x-csi-node/plugin", "y/plugin"`},
		"no such container": {daemon("", ""), Options{Containers: []string{"plugin", "plugni"}}, Choice, `the manifest has no container "plugni", or it is a sidecar; its containers are "x-csi-node/plugin"`},
		"bad id":            {daemon("", ""), Options{ID: "a/b"}, Invalid, `plugin id "a/b" is not`},
		"no id":             {strings.Replace(daemon("", ""), "x-csi-node", "csi-node", 1), Options{}, Invalid, "no id of the plugin follows from the manifest"},
		"unknown value":     {daemon("", ""), Options{Values: map[string]string{"X": "y"}}, Invalid, `no required value has the name "X"; the required values are: none`},
		"unknown secret":    {golden("cloud.yaml"), Options{Secrets: map[string]string{"X": "/y"}}, Invalid, `takes the secret "X"; these take one: CLOUDY_TOKEN`},
		"envFrom":           {daemon("envFrom: [{secretRef: {name: s}}]", ""), Options{}, Invalid, `takes its variables from the Secret "s", which is not in the manifest`},
		"wrong type":        {daemon("env: hunter2", ""), Options{}, Invalid, "m.yaml:1: a field of this DaemonSet does not have the type"},
		"secret's type":     {daemon("envFrom: [{secretRef: {name: s}}]", "") + "---\nkind: Secret\nmetadata: {name: s}\ndata: hunter2\n", Options{}, Invalid, "a field of this Secret does not have the type"},
		"nameless variable": {daemon("env: [{value: x}]", ""), Options{}, Invalid, `a variable of container "plugin" of DaemonSet "x-csi-node" has no name`},
		"bad variable":      {daemon("env: [{name: 'A=B', value: hunter3}]", ""), Options{}, Invalid, "the manifest has a text that no plugin file can express: x.yaml"},
		"bad mount":         {daemon("volumeMounts: [{name: v, mountPath: rel}]", "      volumes: [{name: v, hostPath: {path: /v}}]\n"), Options{}, Invalid, `the mount "v" of container`},
		"bad volume":        {daemon("volumeMounts: [{name: v, mountPath: /v}]", "      volumes: [{name: v, hostPath: {path: v}}]\n"), Options{}, Invalid, `the volume "v" of DaemonSet "x-csi-node" has no absolute path`},
		"colon":             {daemon("volumeMounts: [{name: v, mountPath: /v}]", "      volumes: [{name: v, hostPath: {path: '/v:w:x'}}]\n"), Options{}, Invalid, "is not SOURCE:TARGET[:OPTIONS]"},
		"doubling":          {daemon("env:\n- {name: A, value: aaaaaaaaaaaaaaaa}\n"+doubling(), ""), Options{}, Invalid, "has more than 32768 bytes"},
		"large":             {strings.Repeat("#", MaxFile+1), Options{}, Invalid, "m.yaml has more than 1048576 bytes"},
		"deep lists":        {strings.Repeat("{kind: List, items: [", 6) + "{kind: Pod}" + strings.Repeat("]}", 6), Options{}, Invalid, "lists are nested too deeply"},
		"kubeconfig":        {daemon("command: [x, --kubeconfig=/etc/k]", ""), Options{}, Kubernetes, "the driver needs the API of Kubernetes, which a host without a cluster does not have. The signs of container \"plugin\" of DaemonSet \"x-csi-node\" are its argument --kubeconfig"},
		"custom resources":  {daemon("", "      serviceAccountName: s\n") + bound("[longhorn.io]", "[volumes]", "[get]"), Options{}, Kubernetes, `the right of its service account "s" to get volumes.longhorn.io`},
		"pods":              {daemon("", "      serviceAccountName: s\n") + bound("['']", "[pods]", "[get]"), Options{}, Kubernetes, `to get pods`},
		"all":               {daemon("", "      serviceAccountName: s\n") + bound("['*']", "['*']", "['*']"), Options{}, Kubernetes, `to * all resources of the group "*"`},
		"token mount":       {daemon("volumeMounts: [{name: v, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}]", ""), Options{}, Kubernetes, "its mount /var/run/secrets/kubernetes.io"},
		"swarm type":        {`{"interface": {"types": ["docker.volumedriver/1.0"]}}`, Options{}, Invalid, `the managed plugin is not a CSI driver: its interface is "docker.volumedriver/1.0"`},
		"swarm entrypoint":  {`{"interface": {"types": ["docker.csinode/1.0"]}}`, Options{}, Invalid, "the config.json has no entrypoint"},
		"swarm id":          {`{"interface": {"types": ["docker.csinode/1.0"]}, "entrypoint": ["/x"]}`, Options{}, Invalid, "no id of the plugin follows"},
		"swarm field":       {`{"interface": {"types": "hunter2"}}`, Options{}, Invalid, "a field of the config.json does not have the type"},
		"swarm container":   {`{"interface": {"types": ["docker.csinode/1.0"]}, "entrypoint": ["/x"]}`, Options{Containers: []string{"x"}}, Invalid, "a managed plugin has one container"},
		"swarm secret":      {`{"interface": {"socket": "x.sock", "types": ["docker.csinode/1.0"]}, "entrypoint": ["/x"]}`, Options{Secrets: map[string]string{"A": "/b"}}, Invalid, `takes the secret "A"`},
	} {
		t.Run(name, func(t *testing.T) {
			tt.opts.File = "m.yaml"
			r, err := Import([]byte(tt.text), tt.opts)
			var e *Error
			if !errors.As(err, &e) || e.Kind != tt.kind || !strings.Contains(e.Message, tt.want) || strings.Contains(e.Message, "hunter2") || r != nil {
				t.Errorf("got %s\nwant kind %d, %s", shown(r, err), tt.kind, tt.want)
			}
		})
	}
}

// doubling returns variables of which each is twice as long as the one before.
func doubling() string {
	var b strings.Builder
	last := "A"
	for i := range 40 {
		name := fmt.Sprintf("A%d", i)
		fmt.Fprintf(&b, "- {name: %s, value: $(%s)$(%s)}\n", name, last, last)
		last = name
	}
	return b.String()
}

// bound returns a role, and its binding to the service account s.
func bound(groups, resources, verbs string) string {
	return `---
kind: ClusterRole
metadata: {name: r}
rules: [{apiGroups: ` + groups + `, resources: ` + resources + `, verbs: ` + verbs + `}]
---
kind: ClusterRoleBinding
metadata: {name: b}
roleRef: {kind: ClusterRole, name: r}
subjects: [{kind: ServiceAccount, name: s}]
`
}

// TestAnswers checks the effect of the options.
func TestAnswers(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}

	r, err := Import(read("cloud.yaml"), Options{
		ID: "mine", Runtime: "docker", Values: map[string]string{"ADDRESS": "192.0.2.1", "CLOUDY_URL": "https://x"}, Secrets: map[string]string{"CLOUDY_TOKEN": "/root/token"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Required) != 0 || r.ID != "mine" || len(r.Secrets) != 1 || r.Secrets[0].Path != "/root/token" {
		t.Errorf("%+v", r)
	}
	for _, f := range r.Files {
		_, d, err := pluginfile.Parse(f.Name, []byte(strings.Replace(string(f.Text), "enabled: false", "enabled: true", 1)))
		if err != nil {
			t.Error(err)
			continue
		}
		env := d.Container.Env
		if d.ID != "mine" || d.Container.Runtime != "docker" || d.Disabled || !f.Definition.Disabled {
			t.Errorf("%+v", d)
		}
		if d.Type == "node" && env["ADDRESS"].Value != "192.0.2.1" || d.Type == "controller" && (env["CLOUDY_TOKEN"].Secret.File != "/root/token" || env["CLOUDY_URL"].Value != "https://x") {
			t.Errorf("%s has %+v", f.Name, env)
		}
	}

	// Only the named containers count, also those without a sidecar.
	r, err = Import(read("fuse.yaml"), Options{Containers: []string{"fuse-mount/fuse-mount"}})
	if err != nil || len(r.Files) != 1 || r.Files[0].Container != "fuse-mount/fuse-mount" {
		t.Errorf("%+v, %v", r, err)
	}
	// The volume of a Secret takes a directory.
	r, err = Import(read("appliance.yaml"), Options{Secrets: map[string]string{"config": "/root/config"}})
	if err != nil || !strings.Contains(string(r.Files[0].Text), "/root/config:/config:ro") || r.Secrets[2].Path != "/root/config/driver-config.yaml" {
		t.Errorf("%+v, %v", r, err)
	}
	// A person knows better.
	r, err = Import(read("mountpods.yaml"), Options{WithoutKubernetes: true})
	if err != nil || len(r.Files) != 1 || !strings.Contains(r.Warnings[0], "signs that it needs the API of Kubernetes: its argument --kubeconfig") {
		t.Errorf("%+v, %v", r, err)
	}
	// JSON is YAML, too.
	r, err = Import([]byte(`{"kind": "DaemonSet", "metadata": {"name": "j"}, "spec": {"template": {"spec": {"containers": [{"name": "p", "image": "i", "env": [{"name": "CSI_ENDPOINT", "value": "unix:///x/y.sock"}]}]}}}}`), Options{})
	if err != nil || r.Files[0].Name != "j.yaml" {
		t.Errorf("%+v, %v", r, err)
	}
	// A driver that is not told its socket.
	r, err = Import([]byte(strings.Replace(daemon("", ""), "args: [--endpoint=unix:///csi/csi.sock]", "args: [run]", 1)), Options{Containers: []string{"plugin"}})
	if err != nil || !strings.Contains(strings.Join(r.Warnings, "\n"), "does not tell container \"plugin\" of DaemonSet \"x-csi-node\" where to listen") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestSidecars checks that sidecars are recognised under the names of all registries, and drivers
// are not.
func TestSidecars(t *testing.T) {
	for _, image := range []string{
		"registry.k8s.io/sig-storage/csi-provisioner:v5.0.1", "k8s.gcr.io/sig-storage/csi-attacher:v3", "quay.io/k8scsi/csi-node-driver-registrar:v1.3.0",
		"gcr.io/gke-release/csi-node-driver-registrar@sha256:ab", "public.ecr.aws/eks-distro/kubernetes-csi/external-snapshotter/csi-snapshotter:v8",
		"public.ecr.aws/eks-distro/kubernetes-csi/external-provisioner:v3", "mcr.microsoft.com/oss/kubernetes-csi/livenessprobe:v2", "rancher/mirrored-sig-storage-livenessprobe:v2",
		"longhornio/csi-resizer:v1", "quay.io/openshift/origin-csi-external-resizer:4.15", "registry.redhat.io/openshift4/ose-csi-external-attacher-rhel8:v4",
		"registry.example.com:5000/mirror/csi-external-health-monitor-controller", "registry.cn-hangzhou.aliyuncs.com/hdls/x:csi-attacher", "quay.io/csiaddons/k8s-sidecar:v0.8",
		"driver-registrar",
	} {
		if sidecarTask(container{Image: image}) == noTask {
			t.Errorf("%s is no sidecar", image)
		}
	}
	for _, image := range []string{
		"registry.k8s.io/sig-storage/hostpathplugin:v1", "registry.k8s.io/sig-storage/nfsplugin:v4", "quay.io/cephcsi/cephcsi:v3", "docker.io/hetznercloud/hcloud-csi-driver:v2",
		"chrislusf/seaweedfs-csi-driver:v1", "juicedata/juicefs-csi-driver:v0.28", "democraticcsi/democratic-csi:latest", "", ":", "@", "/",
	} {
		if sidecarTask(container{Image: image}) != noTask {
			t.Errorf("%s is a sidecar", image)
		}
	}
}

// FuzzImport checks that no manifest makes Import panic, that each error is an *Error of one line,
// and that the agent accepts each plugin file, which is disabled.
func FuzzImport(f *testing.F) {
	for _, path := range manifests(f) {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("kind: List\nitems: [&a {kind: List, items: [*a]}]\n"))
	f.Add([]byte(daemon("env: [{name: A, value: '$('}, {name: B, value: '$$$'}, {name: \"C\\n\", value: \"\\0\"}]", "")))
	f.Add([]byte("{{ x }}"))
	f.Add([]byte(daemon("volumeMounts: [{name: v, mountPath: /}]", "      volumes: [{name: v, hostPath: {path: /var/lib/kubelet}}]\n")))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Import(data, Options{File: "m", WithoutKubernetes: true})
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Message == "" || strings.ContainsAny(e.Message, "\n\x1b")) {
			t.Fatalf("%q: %q", data, err)
		}
		if (r == nil) == (err == nil) {
			t.Fatalf("%q: %+v, %v", data, r, err)
		}
		if r == nil {
			return
		}
		names := map[string]bool{}
		for _, file := range r.Files {
			id, d, err := pluginfile.Parse(file.Name, file.Text)
			if err != nil || id != r.ID || !d.Disabled || !d.Equal(file.Definition) || names[file.Name] {
				t.Fatalf("%q: %v in\n%s", data, err, file.Text)
			}
			names[file.Name] = true
		}
		if len(r.Files) == 0 || len(r.Files) > 2 {
			t.Fatalf("%q: %d files", data, len(r.Files))
		}
	})
}
