package config

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// ClusterFile is the name of the file that can hold the cluster section, without the key "cluster".
// The file is in the directory of the configuration file.
const ClusterFile = "cluster.yaml"

// DefaultPrefix is the default of Cluster.Prefix.
const DefaultPrefix = "/volagent"

// These are the values of Cluster.Boot.
const (
	BootVerify     = "verify"      // ask etcd before any shared volume is mounted again
	BootTrustLocal = "trust-local" // do not ask for volumes that allow only multi-node modes
)

// Cluster is the section "cluster" of the configuration. It says how the agent reaches the etcd that
// holds the shared volumes. The zero value means that the host belongs to no cluster.
type Cluster struct {
	Endpoints []string // URLs of a scheme, a host and a port

	// CA, Cert and Key are absolute paths of PEM files. Without CA, the agent trusts the authorities
	// that the host trusts. Cert and Key are set together or not at all.
	CA, Cert, Key string

	// User and Password are set together or not at all, and never together with Cert. Password is a
	// reference; secret.Resolver reads the value when the agent connects.
	User     string
	Password call.SecretRef

	Prefix  string // the beginning of all keys in etcd; an absolute path
	Secrets AllowedSecrets

	// Boot says whether the agent must reach etcd before it mounts volumes again after a boot. The
	// value is BootVerify or BootTrustLocal.
	Boot string
}

// AllowedSecrets lists the secrets of this host that the definitions of shared volumes may use. Any
// host of the cluster can write such a definition.
type AllowedSecrets struct {
	Files       []string // absolute paths; a directory allows all files below it
	Credentials []string // names of systemd credentials
	Env         []string // names of environment variables
}

// Enabled reports whether the host belongs to a cluster.
func (c Cluster) Enabled() bool { return len(c.Endpoints) > 0 }

// Allows returns an error if the definition of a shared volume may not use a secret on this host.
// Allows checks only the text of the reference. A file below an allowed directory may still be a
// symbolic link, so the code that opens the file must not follow links.
func (c Cluster) Allows(ref call.SecretRef) error {
	switch {
	case ref.Sealed != "" || ref.Literal.Given() || ref.Keep:
		return volume.Errorf(volume.ErrInvalid, "sealed values are not shared: each host reads the secrets of a shared volume itself").
			WithHint("use {file: PATH}, {credential: NAME} or {env: NAME}")
	case ref.Sources() != 1:
		return volume.Errorf(volume.ErrInvalid, "a secret of a shared volume names %d sources; it needs exactly one of file, credential, env", ref.Sources())
	case ref.File != "":
		return c.Secrets.allowsFile(ref.File)
	case ref.Credential != "":
		return listed(c.Secrets.Credentials, "credential", ref.Credential, "credentials")
	default:
		return listed(c.Secrets.Env, "variable", ref.Env, "env")
	}
}

// allowsFile returns an error for a file that is not listed. It refuses a path with "..": if "a" is
// a symbolic link, the kernel resolves "a/.." to another directory than filepath.Clean.
func (s AllowedSecrets) allowsFile(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return volume.Errorf(volume.ErrInvalid, `file %q of a secret is not an absolute path without "." and ".."`, path)
	}

	for _, allowed := range s.Files {
		dir := filepath.Clean(allowed) + "/"
		if path == allowed || strings.HasPrefix(path, dir) {
			return nil
		}
	}

	return notListed("file", path, "files")
}

func listed(names []string, what, name, key string) error {
	if slices.Contains(names, name) {
		return nil
	}
	return notListed(what, name, key)
}

func notListed(what, name, key string) error {
	return volume.Errorf(volume.ErrRefused, "shared volumes may not use %s %q on this host", what, name).
		WithHint("add it to secrets.%s in the cluster section of this host's configuration, and restart the agent", key)
}

// describe prints the section in the format of a configuration file. It prints nothing if the host
// belongs to no cluster, and never the value of a secret.
func (c Cluster) describe(w io.Writer) error {
	if !c.Enabled() {
		return nil
	}

	lines := []string{"cluster:", "  endpoints: " + quoted(c.Endpoints)}
	for _, kv := range [][2]string{{"ca", c.CA}, {"cert", c.Cert}, {"key", c.Key}, {"user", c.User}} {
		if kv[1] != "" {
			lines = append(lines, fmt.Sprintf("  %s: %q", kv[0], kv[1]))
		}
	}

	for _, kv := range [][2]string{{"file", c.Password.File}, {"credential", c.Password.Credential}, {"env", c.Password.Env}} {
		if kv[1] != "" {
			lines = append(lines, fmt.Sprintf("  password: {%s: %q}", kv[0], kv[1]))
		}
	}

	lines = append(lines, fmt.Sprintf("  prefix: %q", c.Prefix),
		fmt.Sprintf("  secrets: {files: %s, credentials: %s, env: %s}", quoted(c.Secrets.Files), quoted(c.Secrets.Credentials), quoted(c.Secrets.Env)),
		fmt.Sprintf("  boot: %q", c.Boot))
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

// quoted returns a list in the format of YAML.
func quoted(words []string) string {
	out := make([]string, len(words))
	for i, word := range words {
		out[i] = strconv.Quote(word)
	}
	return "[" + strings.Join(out, ", ") + "]"
}
