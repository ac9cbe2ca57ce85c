package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// secretText must not appear in any error or output.
const secretText = "wh1sper"

// newClusterDir returns a directory with the files that a cluster section can name.
func newClusterDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	for name, block := range map[string]*pem.Block{
		"ca.pem":     {Type: "CERTIFICATE", Bytes: cert},
		"client.pem": {Type: "CERTIFICATE", Bytes: cert},
		"client.key": {Type: "PRIVATE KEY", Bytes: private},
		"sec1.key":   {Type: "EC PRIVATE KEY", Bytes: private},
		"bad.pem":    {Type: "CERTIFICATE", Bytes: []byte("x")},
	} {
		writeFile(t, filepath.Join(dir, name), string(pem.EncodeToMemory(block)), 0o600)
	}

	writeFile(t, filepath.Join(dir, "open.key"), "-----BEGIN PRIVATE KEY-----\n", 0o640)
	writeFile(t, filepath.Join(dir, "text"), secretText, 0o600)
	writeFile(t, filepath.Join(dir, "open"), secretText, 0o644)
	writeFile(t, filepath.Join(dir, "large"), strings.Repeat("x", maxPEM+1), 0o600)
	return dir
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // the umask does not matter
		t.Fatal(err)
	}
}

// loadDir reads the configuration file c.yaml of a directory.
func loadDir(t *testing.T, dir string) (Config, error) {
	t.Helper()
	fl := pflag.NewFlagSet("volagent", pflag.ContinueOnError)
	AddFlags(fl)
	if err := fl.Parse([]string{"--config", filepath.Join(dir, "c.yaml")}); err != nil {
		t.Fatal(err)
	}
	return Load(fl)
}

// complete is a section with every key. DIR stands for the directory of the test.
const complete = `endpoints: [https://10.0.0.1:2379, "https://[fd00::1]:2379", https://etcd-3.example:2379]
ca: DIR/ca.pem
cert: DIR/client.pem
key: DIR/client.key
prefix: /site-1/volagent
secrets:
  files: [/etc/volagent/secrets/, /etc/volagent/db.password]
  credentials: [nfs, smb.password]
  env: [S3_KEY]
boot: verify
`

// indent returns a section as the value of the key "cluster".
func indent(section string) string {
	return "cluster:\n  " + strings.ReplaceAll(strings.TrimSuffix(section, "\n"), "\n", "\n  ") + "\n"
}

// TestCluster checks that the section has the same meaning in the configuration file and in a file
// of its own. Load must read the output of check-config as the same section.
func TestCluster(t *testing.T) {
	dir := newClusterDir(t)
	section := strings.ReplaceAll(complete, "DIR", dir)
	want := Cluster{
		Endpoints: []string{"https://10.0.0.1:2379", "https://[fd00::1]:2379", "https://etcd-3.example:2379"},
		CA:        dir + "/ca.pem", Cert: dir + "/client.pem", Key: dir + "/client.key", Prefix: "/site-1/volagent",
		Secrets: AllowedSecrets{
			Files:       []string{"/etc/volagent/secrets/", "/etc/volagent/db.password"},
			Credentials: []string{"nfs", "smb.password"}, Env: []string{"S3_KEY"},
		},
		Boot: BootVerify,
	}

	writeFile(t, dir+"/c.yaml", "log_level: warn\n"+indent(section)+"log_format: json\n", 0o600)
	inside, err := loadDir(t, dir)
	if err != nil || !inside.Equal(Config{
		DataDir: "/var/lib/volagent", RuntimeDir: "/run/volagent", Socket: "/run/volagent/volagent.sock", SocketGroup: "root",
		PluginDir: "/etc/volagent/plugins.d", FenceDir: "/etc/volagent/fence.d", VolumesDir: "/etc/volagent/volumes.d", ClassesDir: "/etc/volagent/classes.d", LogLevel: "warn", LogFormat: "json",
		StatsInterval: "5m", EventsKeep: "168h", Cluster: want,
	}) {
		t.Fatalf("in the configuration file: %v\n%+v", err, inside)
	}

	var out strings.Builder
	if err := inside.Describe(&out); err != nil {
		t.Fatal(err)
	}
	writeFile(t, dir+"/c.yaml", out.String(), 0o600)
	if again, err := loadDir(t, dir); err != nil || !again.Equal(inside) {
		t.Errorf("what check-config prints: %v\n%s", err, out.String())
	}

	writeFile(t, dir+"/c.yaml", "cluster:\n", 0o600) // an empty value is no section
	writeFile(t, dir+"/cluster.yaml", section, 0o600)
	if c, err := loadDir(t, dir); err != nil || !c.Cluster.Enabled() || !c.Equal(mustLoad(t, dir, want)) {
		t.Errorf("in a file of its own: %v\n%+v", err, c.Cluster)
	}
}

// mustLoad returns the configuration of a directory with another cluster.
func mustLoad(t *testing.T, dir string, cluster Cluster) Config {
	t.Helper()
	c, err := loadDir(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	c.Cluster = cluster
	return c
}

// TestNoCluster checks that a host without the section belongs to no cluster, and that check-config
// does not print a section then.
func TestNoCluster(t *testing.T) {
	for _, file := range []string{"# nothing\n", "cluster:\n", "cluster: ~\nlog_level: warn\n"} {
		c, err := load(t, file)
		if err != nil || c.Cluster.Enabled() {
			t.Errorf("%q: %v, %+v", file, err, c.Cluster)
		}
		var out strings.Builder
		if err := c.Describe(&out); err != nil || strings.Contains(out.String(), "cluster") {
			t.Errorf("%q: %v\n%s", file, err, out.String())
		}
	}
}

// TestClusterDefaults checks the defaults of the section, and the three ways to refer to a password.
func TestClusterDefaults(t *testing.T) {
	dir := newClusterDir(t)
	for password, want := range map[string]call.SecretRef{
		"{file: " + dir + "/text}": {File: dir + "/text"},
		"{credential: etcd}":       {Credential: "etcd"},
		"{env: ETCD_PASSWORD}":     {Env: "ETCD_PASSWORD"},
	} {
		writeFile(t, dir+"/cluster.yaml", "endpoints:\n- http://localhost:2379\n- http://[::1]:2380\nuser: 0123\npassword: "+password+"\nprefix:\nsecrets:\n", 0o600)
		writeFile(t, dir+"/c.yaml", "", 0o600)
		c, err := loadDir(t, dir)
		if err != nil || !c.Equal(mustLoad(t, dir, Cluster{
			Endpoints: []string{"http://localhost:2379", "http://[::1]:2380"}, User: "0123", Password: want,
			Prefix: "/volagent", Boot: BootVerify,
		})) {
			t.Errorf("%s: %v\n%+v", password, err, c.Cluster)
		}

		var out strings.Builder
		if err := c.Describe(&out); err != nil || strings.Contains(out.String(), secretText) {
			t.Errorf("%s: %v\n%s", password, err, out.String())
		}
		if err := os.Remove(dir + "/cluster.yaml"); err != nil {
			t.Fatal(err)
		}
		writeFile(t, dir+"/c.yaml", out.String(), 0o600)
		if again, err := loadDir(t, dir); err != nil || !again.Equal(c) {
			t.Errorf("%s, as check-config prints it: %v\n%s", password, err, out.String())
		}
	}
}

// TestEqual checks that Equal compares the section.
func TestEqual(t *testing.T) {
	one := Config{Cluster: Cluster{Endpoints: []string{"https://a:1"}, Secrets: AllowedSecrets{Env: []string{"A"}}}}
	same := Config{Cluster: Cluster{Endpoints: []string{"https://a:1"}, Secrets: AllowedSecrets{Env: []string{"A"}}}}
	if !one.Equal(same) {
		t.Error("equal sections differ")
	}
	for _, change := range []func(c *Config){
		func(c *Config) { c.NodeID = "b" },
		func(c *Config) { c.Cluster.Endpoints = []string{"https://b:1"} },
		func(c *Config) { c.Cluster.Secrets.Env = nil },
		func(c *Config) { c.Cluster.Password.Env = "B" },
	} {
		other := same
		change(&other)
		if one.Equal(other) {
			t.Errorf("%+v equals %+v", one, other)
		}
	}
}

// TestBadCluster checks the message and the hint for each mistake in the section. In the texts, DIR
// stands for the directory of the test.
func TestBadCluster(t *testing.T) {
	const ok = "endpoints: [https://a:1]\n"
	const like = "an endpoint is a URL such as https://10.0.0.1:2379"
	endpoint := func(text string) string { return "endpoints: ['" + text + "']\n" }
	for name, tt := range map[string]struct{ section, want, hint string }{
		"no endpoints":      {"prefix: /x\n", `1: the cluster section has no endpoints`, "endpoints: [https://10.0.0.1:2379]"},
		"nothing":           {"# later\n", `1: the cluster section has no endpoints`, "endpoints: [https://10.0.0.1:2379]"},
		"no keys":           {"- https://a:1\n", `1: "cluster" must have keys: boot, ca, cert, endpoints, key, password, prefix, secrets, user`, ""},
		"no YAML":           {"endpoints: [\n", ` yaml: line 1: did not find expected node content`, ""},
		"unknown key":       {ok + "prefx: /x\n", `2: unknown key "prefx" in "cluster"`, `did you mean "prefix"?`},
		"strange key":       {ok + "timeout: 1s\n", `2: unknown key "timeout" in "cluster"`, "known keys: boot, ca, cert, endpoints, key, password, prefix, secrets, user"},
		"outer key":         {"cluster:\n  " + ok, `1: unknown key "cluster" in "cluster"`, "cluster.yaml has no outer key: remove this line, and move the keys below it to the left"},
		"unknown list":      {ok + "secrets:\n  file: [/a]\n", `3: unknown key "file" in "secrets"`, `did you mean "files"?`},
		"unknown source":    {ok + "password:\n  flie: /a\n", `3: unknown key "flie" in "password"`, `did you mean "file"?`},
		"twice":             {ok + "ca: /a\nca: /b\n", `3: key "ca" appears twice in "cluster", first in line 2`, ""},
		"plain endpoints":   {"endpoints: https://a:1\n", `1: the value of "endpoints" must be a list, as [a, b]`, ""},
		"nested endpoints":  {"endpoints:\n- https://a:1\n- [https://b:1]\n", `3: the list "endpoints" contains an item that is not a plain text`, ""},
		"empty endpoint":    {"endpoints: [https://a:1, '']\n", `1: the list "endpoints" contains an item that is not a plain text`, ""},
		"list for a text":   {ok + "prefix: [/a]\n", `2: the value of "prefix" must be a plain text`, ""},
		"list for secrets":  {ok + "secrets: [/a]\n", `2: "secrets" must have keys: credentials, env, files`, ""},
		"same endpoint":     {"endpoints: [https://a:1, https://a:1]\n", `1: the list "endpoints" contains "https://a:1" twice`, ""},
		"same host":         {"endpoints: [https://a:1, https://A:01]\n", `1: endpoints "https://a:1" and "https://A:01" have the same host and port`, ""},
		"same address":      {"endpoints: ['https://[::1]:1', 'https://[0::1]:1']\n", `1: endpoints "https://[::1]:1" and "https://[0::1]:1" have the same host and port`, ""},
		"two schemes":       {"endpoints: [https://a:1, http://localhost:1]\n", `1: endpoints mix http and https`, ""},
		"no scheme":         {endpoint("10.0.0.1:2379"), `1: endpoint "10.0.0.1:2379" is not a URL with https or http`, like},
		"a name alone":      {endpoint("etcd1:2379"), `1: endpoint "etcd1:2379" is not a URL with https or http`, like},
		"another scheme":    {endpoint("unix:///run/etcd"), `1: endpoint "unix:///run/etcd" is not a URL with https or http`, like},
		"two in one":        {endpoint("https://a:1,b:1"), `1: endpoint "https://a:1,b:1" is not a URL with https or http`, like},
		"no host":           {endpoint("https://:2379"), `1: endpoint "https://:2379" has no host`, like},
		"a strange host":    {endpoint("https://a,b:1"), `1: endpoint "https://a,b:1" has a host that is neither an IP address nor a name`, like},
		"a zone":            {endpoint("https://[fe80::1%25eth0]:1"), `1: endpoint "https://[fe80::1%25eth0]:1" has a host that is neither an IP address nor a name`, like},
		"no port":           {endpoint("https://a"), `1: endpoint "https://a" has no port from 1 to 65535`, like},
		"port 0":            {endpoint("https://a:0"), `1: endpoint "https://a:0" has no port from 1 to 65535`, like},
		"large port":        {endpoint("https://a:65536"), `1: endpoint "https://a:65536" has no port from 1 to 65535`, like},
		"a path":            {endpoint("https://a:1/v3"), `1: endpoint "https://a:1/v3" must be written as "https://a:1"`, like},
		"a slash":           {endpoint("https://a:1/"), `1: endpoint "https://a:1/" must be written as "https://a:1"`, like},
		"a query":           {endpoint("https://a:1?x"), `1: endpoint "https://a:1?x" must be written as "https://a:1"`, like},
		"capitals":          {endpoint("HTTPS://a:1"), `1: endpoint "HTTPS://a:1" must be written as "https://a:1"`, like},
		"a user in it":      {endpoint("https://root:" + secretText + "@a:1"), `1: endpoint "...@a:1" contains a user; the keys for this are user and password`, like},
		"a password in it":  {endpoint("https://root:" + secretText + "@a:x"), `1: endpoint "...@a:x" is not a URL with https or http`, like},
		"passwords in two":  {"endpoints: ['https://r:" + secretText + "@a:1', 'https://r:" + secretText + "@a:1']\n", `1: the list "endpoints" contains "...@a:1" twice`, ""},
		"http elsewhere":    {endpoint("http://10.0.0.1:2379"), `1: endpoint "http://10.0.0.1:2379" would send permission and secrets over the network in clear text`, "use https; http is only for etcd on this host, as http://127.0.0.1:2379"},
		"http and a name":   {endpoint("http://localhost.example:1"), `1: endpoint "http://localhost.example:1" would send permission and secrets over the network in clear text`, "use https; http is only for etcd on this host, as http://127.0.0.1:2379"},
		"http and ca":       {endpoint("http://127.0.0.1:1") + "ca: DIR/ca.pem\n", `1: endpoints use http, which has no use for "ca"`, `use https, or remove "ca"`},
		"http and cert":     {endpoint("http://[::1]:1") + "cert: DIR/client.pem\nkey: DIR/client.key\n", `1: endpoints use http, which has no use for "cert"`, `use https, or remove "cert"`},
		"cert alone":        {ok + "cert: DIR/client.pem\n", `2: the cluster section has a cert, but no key`, ""},
		"key alone":         {ok + "ca: DIR/ca.pem\nkey: DIR/client.key\n", `1: the cluster section has a key, but no cert`, ""},
		"cert and user":     {ok + "cert: DIR/client.pem\nkey: DIR/client.key\nuser: a\npassword: {env: A}\n", `2: the cluster section has both a cert and a user`, "remove cert and key, or user and password"},
		"user alone":        {ok + "user: a\n", `1: the cluster section has a user, but no password`, ""},
		"password alone":    {ok + "password: {env: A}\n", `1: the cluster section has a password, but no user`, ""},
		"a strange user":    {ok + "user: a b\npassword: {env: A}\n", `1: user "a b" contains a space or a control character`, ""},
		"clear password":    {ok + "user: a\npassword: " + secretText + "\n", `3: "password" must be a reference: a configuration file must not contain secrets`, "password: {file: PATH}, {credential: NAME} or {env: NAME}"},
		"listed password":   {ok + "user: a\npassword: [" + secretText + "]\n", `3: "password" must be a reference: a configuration file must not contain secrets`, "password: {file: PATH}, {credential: NAME} or {env: NAME}"},
		"two sources":       {ok + "user: a\npassword: {env: A, file: /b}\n", `3: "password" names 2 secrets; it needs exactly one of file, credential, env`, ""},
		"no source":         {ok + "user: a\npassword: {env: }\n", `3: "password" names 0 secrets; it needs exactly one of file, credential, env`, ""},
		"a bad credential":  {ok + "user: a\npassword: {credential: ../a}\n", `3: credential "../a" is not a name`, ""},
		"a bad variable":    {ok + "user: a\npassword: {env: A-B}\n", `3: variable "A-B" is not a name`, ""},
		"no password file":  {ok + "user: a\npassword: {file: DIR/none}\n", `3: cannot read password file DIR/none: no such file or directory`, ""},
		"an open password":  {ok + "user: a\npassword: {file: DIR/open}\n", `3: password file DIR/open has mode 0644, so other users may read it`, "chmod 600 DIR/open"},
		"relative password": {ok + "user: a\npassword: {file: text}\n", `3: password file "text" is not an absolute path`, ""},
		"no ca file":        {ok + "ca: DIR/none\n", `2: cannot read ca DIR/none: no such file or directory`, ""},
		"relative ca":       {ok + "ca: ca.pem\n", `2: ca "ca.pem" is not an absolute path`, ""},
		"a directory as ca": {ok + "ca: DIR\n", `2: cannot read ca DIR: it is not a regular file`, ""},
		"a large ca":        {ok + "ca: DIR/large\n", `2: cannot read ca DIR/large: it has more than 1048576 bytes`, ""},
		"a key as ca":       {ok + "ca: DIR/client.key\n", `2: ca DIR/client.key is not a PEM file with a CERTIFICATE`, ""},
		"a bad ca":          {ok + "ca: DIR/bad.pem\n", `2: ca DIR/bad.pem contains an invalid certificate: x509: malformed certificate`, ""},
		"no cert file":      {ok + "cert: DIR/none\nkey: DIR/client.key\n", `2: cannot read cert DIR/none: no such file or directory`, ""},
		"a text as cert":    {ok + "cert: DIR/text\nkey: DIR/client.key\n", `2: cert DIR/text is not a PEM file with a CERTIFICATE`, ""},
		"no key file":       {ok + "cert: DIR/client.pem\nkey: DIR/none\n", `3: cannot read key DIR/none: no such file or directory`, ""},
		"a cert as key":     {ok + "cert: DIR/client.pem\nkey: DIR/client.pem\n", `3: key DIR/client.pem is not a PEM file with a PRIVATE KEY`, ""},
		"an open key":       {ok + "cert: DIR/client.pem\nkey: DIR/open.key\n", `3: key DIR/open.key has mode 0640, so other users may read it`, "chmod 600 DIR/open.key"},
		"all keys":          {ok + "prefix: /\n", `2: prefix "/" would take all keys of etcd`, "the default is /volagent"},
		"a relative prefix": {ok + "prefix: volagent\n", `2: prefix "volagent" is not a path such as /volagent, without "//", "." and ".." and without "/" at its end`, ""},
		"a prefix's end":    {ok + "prefix: /a/\n", `2: prefix "/a/" is not a path such as /volagent, without "//", "." and ".." and without "/" at its end`, ""},
		"dots in a prefix":  {ok + "prefix: /a/../b\n", `2: prefix "/a/../b" is not a path such as /volagent, without "//", "." and ".." and without "/" at its end`, ""},
		"a bad character":   {ok + "prefix: /a b\n", `2: prefix "/a b" contains characters other than A-Z a-z 0-9 . _ - /`, ""},
		"a long prefix":     {ok + "prefix: /" + strings.Repeat("x", 255) + "\n", `2: prefix has 256 bytes; it may have at most 255`, ""},
		"all files":         {ok + "secrets: {files: [/]}\n", `2: files contains "/", which would allow every file of the host`, ""},
		"all files in dots": {ok + "secrets: {files: [/a/..]}\n", `2: files contains "/a/..", which would allow every file of the host`, ""},
		"a relative file":   {ok + "secrets:\n  env: [A]\n  files: [a]\n", `4: files contains "a", which is not an absolute path without "//", "." and ".."`, ""},
		"dots in a file":    {ok + "secrets: {files: [/a/../b]}\n", `2: files contains "/a/../b", which is not an absolute path without "//", "." and ".."`, ""},
		"two slashes":       {ok + "secrets: {files: [/a//]}\n", `2: files contains "/a//", which is not an absolute path without "//", "." and ".."`, ""},
		"the same file":     {ok + "secrets: {files: [/a, /a]}\n", `2: the list "files" contains "/a" twice`, ""},
		"credential path":   {ok + "secrets: {credentials: [a/b]}\n", `2: credentials: credential "a/b" is not a name`, ""},
		"credential dots":   {ok + "secrets: {credentials: [..]}\n", `2: credentials: credential ".." is not a name`, ""},
		"bad variable":      {ok + "secrets: {env: ['A*']}\n", `2: env: variable "A*" is not a name`, ""},
		"another boot":      {ok + "boot: trust\n", `2: boot "trust" is not verify, which is the only value so far`, ""},
	} {
		dir := newClusterDir(t)
		in := func(text string) string { return strings.ReplaceAll(text, "DIR", dir) }
		writeFile(t, dir+"/c.yaml", "log_level: warn\n", 0o600)
		writeFile(t, dir+"/cluster.yaml", in(tt.section), 0o600)
		c, err := loadDir(t, dir)
		mustRefuse(t, name, err, dir+"/cluster.yaml:"+in(tt.want), in(tt.hint))
		if c.Cluster.Enabled() || c.LogLevel != "warn" {
			t.Errorf("%s: the configuration is %+v", name, c)
		}
	}
}

// mustRefuse checks the message and the hint of an error about a request that must be changed. The
// error must not contain a secret.
func mustRefuse(t *testing.T, name string, err error, message, hint string) {
	t.Helper()
	var refused *volume.Error
	if !errors.As(err, &refused) || !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("%s: %v", name, err)
		return
	}
	if refused.Message != message || refused.Hint != hint {
		t.Errorf("%s:\ngot  %s\nwant %s\nhint %s\nwant %s", name, refused.Message, message, refused.Hint, hint)
	}
	if strings.Contains(refused.Message+refused.Hint, secretText) {
		t.Errorf("%s: the error contains the secret: %+v", name, refused)
	}
}

// TestClusterPlaces checks the errors about the place of the section.
func TestClusterPlaces(t *testing.T) {
	dir := newClusterDir(t)
	writeFile(t, dir+"/c.yaml", "log_level: warn\n"+indent("endpoints: [https://a:1]\nprefix: [/x]\n"), 0o600)
	_, err := loadDir(t, dir)
	mustRefuse(t, "in the configuration file", err, dir+`/c.yaml:4: the value of "prefix" must be a plain text`, "")

	writeFile(t, dir+"/cluster.yaml", "endpoints: [https://a:1]\n", 0o600)
	_, err = loadDir(t, dir)
	mustRefuse(t, "in both files", err, dir+"/c.yaml:2: file "+dir+"/cluster.yaml exists too, and both contain the cluster section", "remove one of them")

	writeFile(t, dir+"/c.yaml", "clster: {}\n", 0o600)
	_, err = loadDir(t, dir)
	mustRefuse(t, "misspelled", err, dir+`/c.yaml:1: unknown key "clster"`, `did you mean "cluster"?`)

	writeFile(t, dir+"/c.yaml", "cluster:\ncluster:\n", 0o600)
	_, err = loadDir(t, dir)
	mustRefuse(t, "twice", err, dir+`/c.yaml:2: key "cluster" appears twice, first in line 1`, "")

	writeFile(t, dir+"/c.yaml", "cluster: on\n", 0o600)
	if err := os.Remove(dir + "/cluster.yaml"); err != nil {
		t.Fatal(err)
	}
	_, err = loadDir(t, dir)
	mustRefuse(t, "a text", err, dir+`/c.yaml:1: "cluster" must have keys: boot, ca, cert, endpoints, key, password, prefix, secrets, user`, "")

	if err := os.Mkdir(dir+"/cluster.yaml", 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = loadDir(t, dir)
	mustRefuse(t, "a directory", err, "cannot read the configuration of the cluster: read "+dir+"/cluster.yaml: is a directory", "")

	if err := os.Remove(dir + "/cluster.yaml"); err != nil {
		t.Fatal(err)
	}
	writeFile(t, dir+"/cluster.yaml", "log_level: warn\n", 0o600)
	t.Setenv("VOLAGENT_CONFIG", dir+"/cluster.yaml")
	fl := pflag.NewFlagSet("volagent", pflag.ContinueOnError)
	AddFlags(fl)
	_, err = Load(fl)
	mustRefuse(t, "one name for both", err, "configuration file "+dir+"/cluster.yaml has the name of the file for the cluster section", "rename it to volagent.yaml")
}

// TestClusterKeys checks that the section accepts the types of private keys that tools write, and a
// key behind a symbolic link.
func TestClusterKeys(t *testing.T) {
	for _, key := range []string{"client.key", "sec1.key", "link.key"} {
		dir := newClusterDir(t)
		if err := os.Symlink("client.key", dir+"/link.key"); err != nil {
			t.Fatal(err)
		}
		writeFile(t, dir+"/c.yaml", indent("endpoints: [https://a:1]\ncert: "+dir+"/client.pem\nkey: "+dir+"/"+key+"\n"), 0o600)
		if c, err := loadDir(t, dir); err != nil || c.Cluster.Key != dir+"/"+key {
			t.Errorf("%s: %v, %+v", key, err, c.Cluster)
		}
	}
}

// TestAllows checks which secrets the definition of a shared volume may use on this host.
func TestAllows(t *testing.T) {
	c := Cluster{Secrets: AllowedSecrets{
		Files:       []string{"/etc/volagent/secrets/", "/srv/keys", "/etc/one"},
		Credentials: []string{"nfs"}, Env: []string{"S3_KEY"},
	}}
	add := func(key string) string {
		return "add it to secrets." + key + " in the cluster section of this host's configuration, and restart the agent"
	}
	const unclean = ` of a secret is not an absolute path without "." and ".."`
	const sealed = "sealed values are not shared: each host reads the secrets of a shared volume itself"
	const references = "use {file: PATH}, {credential: NAME} or {env: NAME}"

	for _, tt := range []struct {
		ref        call.SecretRef
		kind       error
		want, hint string
	}{
		{ref: call.SecretRef{File: "/etc/volagent/secrets/a"}},
		{ref: call.SecretRef{File: "/etc/volagent/secrets/a/..b"}},
		{ref: call.SecretRef{File: "/srv/keys/a"}},
		{ref: call.SecretRef{File: "/etc/one"}},
		{ref: call.SecretRef{Credential: "nfs"}},
		{ref: call.SecretRef{Env: "S3_KEY"}},
		{call.SecretRef{File: "/etc/shadow"}, volume.ErrRefused, `shared volumes may not use file "/etc/shadow" on this host`, add("files")},
		{call.SecretRef{File: "/etc/volagent/secrets"}, volume.ErrRefused, `shared volumes may not use file "/etc/volagent/secrets" on this host`, add("files")},
		{call.SecretRef{File: "/etc/volagent/secrets-old/a"}, volume.ErrRefused, `shared volumes may not use file "/etc/volagent/secrets-old/a" on this host`, add("files")},
		{call.SecretRef{File: "/srv/keys2"}, volume.ErrRefused, `shared volumes may not use file "/srv/keys2" on this host`, add("files")},
		{call.SecretRef{File: "/etc/volagent/secrets/../../shadow"}, volume.ErrInvalid, `file "/etc/volagent/secrets/../../shadow"` + unclean, ""},
		{call.SecretRef{File: "/etc/volagent/secrets/a/../b"}, volume.ErrInvalid, `file "/etc/volagent/secrets/a/../b"` + unclean, ""},
		{call.SecretRef{File: "etc/one"}, volume.ErrInvalid, `file "etc/one"` + unclean, ""},
		{call.SecretRef{Credential: "smb"}, volume.ErrRefused, `shared volumes may not use credential "smb" on this host`, add("credentials")},
		{call.SecretRef{Credential: "S3_KEY"}, volume.ErrRefused, `shared volumes may not use credential "S3_KEY" on this host`, add("credentials")},
		{call.SecretRef{Env: "s3_key"}, volume.ErrRefused, `shared volumes may not use variable "s3_key" on this host`, add("env")},
		{call.SecretRef{Env: "nfs"}, volume.ErrRefused, `shared volumes may not use variable "nfs" on this host`, add("env")},
		{call.SecretRef{Sealed: "v1.a.b"}, volume.ErrInvalid, sealed, references},
		{call.SecretRef{Literal: call.NewSecret(secretText)}, volume.ErrInvalid, sealed, references},
		{call.SecretRef{Literal: call.NewSecret(""), Env: "S3_KEY"}, volume.ErrInvalid, sealed, references},
		{call.SecretRef{Keep: true}, volume.ErrInvalid, sealed, references},
		{call.SecretRef{}, volume.ErrInvalid, "a secret of a shared volume names 0 sources; it needs exactly one of file, credential, env", ""},
		{call.SecretRef{File: "/etc/one", Env: "S3_KEY"}, volume.ErrInvalid, "a secret of a shared volume names 2 sources; it needs exactly one of file, credential, env", ""},
	} {
		err := c.Allows(tt.ref)
		if tt.kind == nil {
			if err != nil {
				t.Errorf("%+v: %v", tt.ref, err)
			}
			if (Cluster{}).Allows(tt.ref) == nil {
				t.Errorf("%+v is allowed without a list", tt.ref)
			}
			continue
		}

		var refused *volume.Error
		if !errors.As(err, &refused) || !errors.Is(err, tt.kind) || refused.Message != tt.want || refused.Hint != tt.hint {
			t.Errorf("%+v: %+v\nwant %s\nhint %s", tt.ref, err, tt.want, tt.hint)
		}
	}
}
