package manifest

import (
	"go.yaml.in/yaml/v3"
)

// object is an object of Kubernetes. The types in this file have only the fields that the package
// uses.
type object struct {
	APIVersion string   `yaml:"apiVersion"`
	Kind       string   `yaml:"kind"`
	Metadata   metadata `yaml:"metadata"`

	node *yaml.Node
	line int
}

type metadata struct {
	Name        string            `yaml:"name"`
	Namespace   string            `yaml:"namespace"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// workload is a DaemonSet, Deployment or StatefulSet.
type workload struct {
	Spec struct {
		Template struct {
			Metadata metadata `yaml:"metadata"`
			Spec     podSpec  `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`

	object *object
}

type podSpec struct {
	ServiceAccountName string      `yaml:"serviceAccountName"`
	ServiceAccount     string      `yaml:"serviceAccount"` // older name of the same field
	HostNetwork        bool        `yaml:"hostNetwork"`
	HostPID            bool        `yaml:"hostPID"`
	Containers         []container `yaml:"containers"`
	InitContainers     []container `yaml:"initContainers"`
	Volumes            []volumeDef `yaml:"volumes"`
}

type container struct {
	Name            string        `yaml:"name"`
	Image           string        `yaml:"image"`
	ImagePullPolicy string        `yaml:"imagePullPolicy"`
	Command         []string      `yaml:"command"`
	Args            []string      `yaml:"args"`
	Env             []envVar      `yaml:"env"`
	EnvFrom         []envFrom     `yaml:"envFrom"`
	VolumeMounts    []volumeMount `yaml:"volumeMounts"`
	Ports           []struct {
		ContainerPort int `yaml:"containerPort"`
	} `yaml:"ports"`
	SecurityContext struct {
		Privileged bool `yaml:"privileged"`
	} `yaml:"securityContext"`
}

type envVar struct {
	Name      string  `yaml:"name"`
	Value     string  `yaml:"value"`
	ValueFrom *source `yaml:"valueFrom"`
}

// source is the origin of a variable's value. Exactly one field is set.
type source struct {
	FieldRef *struct {
		FieldPath string `yaml:"fieldPath"`
	} `yaml:"fieldRef"`
	ResourceFieldRef *struct {
		Resource string `yaml:"resource"`
	} `yaml:"resourceFieldRef"`
	ConfigMapKeyRef *keyRef `yaml:"configMapKeyRef"`
	SecretKeyRef    *keyRef `yaml:"secretKeyRef"`
}

type keyRef struct {
	Name     string `yaml:"name"`
	Key      string `yaml:"key"`
	Optional bool   `yaml:"optional"`
}

type envFrom struct {
	Prefix       string    `yaml:"prefix"`
	ConfigMapRef *fileRefs `yaml:"configMapRef"`
	SecretRef    *fileRefs `yaml:"secretRef"`
}

type volumeMount struct {
	Name             string `yaml:"name"`
	MountPath        string `yaml:"mountPath"`
	SubPath          string `yaml:"subPath"`
	SubPathExpr      string `yaml:"subPathExpr"`
	ReadOnly         bool   `yaml:"readOnly"`
	MountPropagation string `yaml:"mountPropagation"`
}

type volumeDef struct {
	Name     string `yaml:"name"`
	HostPath *struct {
		Path string `yaml:"path"`
		Type string `yaml:"type"`
	} `yaml:"hostPath"`
	EmptyDir *struct {
		Medium string `yaml:"medium"`
	} `yaml:"emptyDir"`
	ConfigMap *fileRefs `yaml:"configMap"`
	Secret    *fileRefs `yaml:"secret"`
	Projected *struct {
		Sources []struct {
			ConfigMap *fileRefs `yaml:"configMap"`
			Secret    *fileRefs `yaml:"secret"`
		} `yaml:"sources"`
	} `yaml:"projected"`
	DownwardAPI *yaml.Node `yaml:"downwardAPI"`
}

// fileRefs names a ConfigMap or Secret, all of whose keys, or those in Items, are used.
type fileRefs struct {
	Name       string `yaml:"name"`
	SecretName string `yaml:"secretName"` // in place of Name, in a volume
	Optional   bool   `yaml:"optional"`
	Items      []struct {
		Key  string `yaml:"key"`
		Path string `yaml:"path"`
	} `yaml:"items"`
}

// configMap is a ConfigMap.
type configMap struct {
	Data       map[string]string `yaml:"data"`
	BinaryData map[string]string `yaml:"binaryData"`
}

// secretObject holds the keys of a Secret. Their values stay nodes that are never read.
type secretObject struct {
	Data       map[string]yaml.Node `yaml:"data"`
	StringData map[string]yaml.Node `yaml:"stringData"`
}

// binding is a RoleBinding or ClusterRoleBinding.
type binding struct {
	RoleRef struct {
		Kind string `yaml:"kind"`
		Name string `yaml:"name"`
	} `yaml:"roleRef"`
	Subjects []struct {
		Kind      string `yaml:"kind"`
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	} `yaml:"subjects"`
}

// role is a Role or ClusterRole.
type role struct {
	Rules []rule `yaml:"rules"`
}

type rule struct {
	APIGroups []string `yaml:"apiGroups"`
	Resources []string `yaml:"resources"`
	Verbs     []string `yaml:"verbs"`
}
