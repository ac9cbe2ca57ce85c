package config

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/untrusted"
	"github.com/volagent/volagent/volmgr/volume"
)

// check returns an error for the first invalid value. It also reads the files of the section, except
// those that shared volumes use.
func (c *Cluster) check(file configFile) error {
	for _, one := range []struct {
		key   string
		check func() error
	}{
		{"endpoints", c.checkEndpoints},
		{"cert", c.checkUser},
		{"ca", func() error { return checkPEM("ca", c.CA, "CERTIFICATE") }},
		{"cert", func() error { return checkPEM("cert", c.Cert, "CERTIFICATE") }},
		{"key", func() error { return checkPEM("key", c.Key, "PRIVATE KEY") }},
		{"password", c.checkPassword},
		{"prefix", c.checkPrefix},
		{"secrets.files", c.Secrets.checkFiles},
		{"secrets.credentials", func() error { return checkNames("credentials", c.Secrets.Credentials, checkCredential) }},
		{"secrets.env", func() error { return checkNames("env", c.Secrets.Env, checkVariable) }},
		{"boot", c.checkBoot},
	} {
		if err := one.check(); err != nil {
			return file.at(one.key, err)
		}
	}

	return nil
}

func invalid(format string, args ...any) *volume.Error {
	return volume.Errorf(volume.ErrInvalid, format, args...)
}

// checkEndpoints returns an error for the first endpoint that is not a plain URL of etcd. It accepts
// http only on this host, because permission and secrets travel to etcd.
func (c *Cluster) checkEndpoints() error {
	if len(c.Endpoints) == 0 {
		return invalid("the cluster section has no endpoints").WithHint("endpoints: [https://10.0.0.1:2379]")
	}

	addresses, schemes := map[string]string{}, map[string]bool{}
	for _, text := range c.Endpoints {
		u, err := parseEndpoint(text)
		if err != nil {
			return err
		}

		address := canonical(u)
		if twin, twice := addresses[address]; twice {
			return invalid("endpoints %q and %q have the same host and port", twin, text)
		}

		addresses[address] = text
		schemes[u.Scheme] = true
		if u.Scheme == "http" && !isLoopback(u.Hostname()) {
			return invalid("endpoint %q would send permission and secrets over the network in clear text", text).
				WithHint("use https; http is only for etcd on this host, as http://127.0.0.1:2379")
		}
	}

	if len(schemes) > 1 {
		return invalid("endpoints mix http and https")
	}

	for _, kv := range [][2]string{{"ca", c.CA}, {"cert", c.Cert}, {"key", c.Key}} {
		if schemes["http"] && kv[1] != "" {
			return invalid("endpoints use http, which has no use for %q", kv[0]).WithHint("use https, or remove %q", kv[0])
		}
	}

	return nil
}

// parseEndpoint parses the URL of an endpoint. The URL must consist of a scheme, a host and a port.
func parseEndpoint(text string) (*url.URL, error) {
	bad := func(why string, args ...any) (*url.URL, error) {
		return nil, invalid("endpoint %q "+why, append([]any{hideUser(text)}, args...)...).
			WithHint("an endpoint is a URL such as https://10.0.0.1:2379")
	}

	u, err := url.Parse(text)
	if err != nil {
		return bad("is not a URL with https or http")
	}

	port, err := strconv.ParseUint(u.Port(), 10, 16)
	plain := u.Scheme + "://" + u.Host
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("is not a URL with https or http")
	case u.User != nil:
		return bad("contains a user; the keys for this are user and password")
	case u.Hostname() == "":
		return bad("has no host")
	case !isHost(u.Hostname()):
		return bad("has a host that is neither an IP address nor a name")
	case err != nil || port == 0:
		return bad("has no port from 1 to 65535")
	case plain != text:
		return bad("must be written as %q", plain)
	default:
		return u, nil
	}
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// isHost reports whether a text is the name of a host, or an IP address without a zone. A zone is
// valid only on one host.
func isHost(text string) bool {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return hostName.MatchString(text)
	}
	return address.Zone() == ""
}

// hideUser returns a URL without its user and password, which may not appear in an error.
func hideUser(text string) string {
	if at := strings.LastIndexByte(text, '@'); at >= 0 {
		return "..." + text[at:]
	}
	return text
}

// canonical returns one text for all spellings of the host and the port of a URL.
func canonical(u *url.URL) string {
	host := strings.ToLower(u.Hostname())
	if address, err := netip.ParseAddr(host); err == nil {
		host = address.Unmap().String()
	}
	return net.JoinHostPort(host, strings.TrimLeft(u.Port(), "0"))
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return host == "localhost"
	}
	return address.Unmap().IsLoopback()
}

// checkUser returns an error unless the agent identifies itself to etcd in at most one way.
func (c *Cluster) checkUser() error {
	password := c.Password != (call.SecretRef{})
	switch {
	case c.Cert != "" && c.Key == "":
		return invalid("the cluster section has a cert, but no key")
	case c.Key != "" && c.Cert == "":
		return invalid("the cluster section has a key, but no cert")
	case c.Cert != "" && c.User != "":
		return invalid("the cluster section has both a cert and a user").WithHint("remove cert and key, or user and password")
	case c.User != "" && !password:
		return invalid("the cluster section has a user, but no password")
	case password && c.User == "":
		return invalid("the cluster section has a password, but no user")
	case strings.ContainsFunc(c.User, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return invalid("user %q contains a space or a control character", c.User)
	default:
		return nil
	}
}

// maxPEM is the maximum size of a PEM file, in bytes. A file with all public authorities has about
// 250 KiB.
const maxPEM = 1 << 20

// checkPEM returns an error if a file is not a PEM file with a block of the given type. The types of
// private keys have different beginnings. Other users may not read a private key. checkPEM does not
// compare cert and key, because the agent must start even if a renewal has replaced only one of
// them.
func checkPEM(key, path, block string) error {
	if path == "" {
		return nil
	}

	raw, err := readOwn(key, path, maxPEM)
	if err == nil && key == "key" {
		err = private(key, path)
	}
	if err != nil {
		return err
	}

	for {
		var found *pem.Block
		if found, raw = pem.Decode(raw); found == nil {
			return invalid("%s %s is not a PEM file with a %s", key, path, block)
		}
		if !strings.HasSuffix(found.Type, block) {
			continue
		}
		if block != "CERTIFICATE" {
			return nil
		}
		if _, err := x509.ParseCertificate(found.Bytes); err != nil {
			return invalid("%s %s contains an invalid certificate: %v", key, path, err)
		}

		return nil
	}
}

// checkPassword checks a password in a file. It cannot check a credential or a variable, because
// only the agent's own process has them.
func (c *Cluster) checkPassword() error {
	switch ref := c.Password; {
	case ref.Credential != "":
		return checkCredential(ref.Credential)
	case ref.Env != "":
		return checkVariable(ref.Env)
	case ref.File != "":
		if _, err := readOwn("password file", ref.File, call.MaxSecret); err != nil {
			return err
		}
		return private("password file", ref.File)
	default:
		return nil
	}
}

// readOwn reads a file that the agent itself uses.
func readOwn(what, path string, limit int64) ([]byte, error) {
	if !filepath.IsAbs(path) {
		return nil, invalid("%s %q is not an absolute path", what, path)
	}

	raw, err := untrusted.ReadFile(path, limit)
	var failed *fs.PathError
	if errors.As(err, &failed) {
		err = failed.Err
	}
	if err != nil {
		return nil, invalid("cannot read %s %s: %v", what, path, err)
	}

	return raw, nil
}

// private returns an error if users other than the owner may use a file.
func private(what, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return invalid("cannot read %s %s: %v", what, path, errors.Unwrap(err))
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return invalid("%s %s has mode %04o, so other users may read it", what, path, mode).WithHint("chmod 600 %s", path)
	}

	return nil
}

var prefixCharacters = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)

func (c *Cluster) checkPrefix() error {
	switch p := c.Prefix; {
	case p == "/":
		return invalid(`prefix "/" would take all keys of etcd`).WithHint("the default is %s", DefaultPrefix)
	case !path.IsAbs(p) || path.Clean(p) != p:
		return invalid(`prefix %q is not a path such as /volagent, without "//", "." and ".." and without "/" at its end`, p)
	case !prefixCharacters.MatchString(p):
		return invalid("prefix %q contains characters other than A-Z a-z 0-9 . _ - /", p)
	case len(p) > 255:
		return invalid("prefix has %d bytes; it may have at most 255", len(p))
	default:
		return nil
	}
}

func (c *Cluster) checkBoot() error {
	if c.Boot != BootVerify && c.Boot != BootTrustLocal {
		return invalid("boot %q is neither %s nor %s", c.Boot, BootVerify, BootTrustLocal)
	}
	return nil
}

// checkFiles returns an error for the first path that cannot be the beginning of a clean path. Only
// a directory may end in "/".
func (s AllowedSecrets) checkFiles() error {
	for _, p := range s.Files {
		clean := filepath.Clean(p)
		switch {
		case clean == "/":
			return invalid("files contains %q, which would allow every file of the host", p)
		case !filepath.IsAbs(p) || clean != strings.TrimSuffix(p, "/"):
			return invalid(`files contains %q, which is not an absolute path without "//", "." and ".."`, p)
		}
	}

	return nil
}

func checkNames(key string, names []string, check func(string) error) error {
	for _, name := range names {
		if err := check(name); err != nil {
			return invalid("%s: %v", key, err)
		}
	}
	return nil
}

func checkCredential(name string) error {
	if name != filepath.Base(name) || name == "." || name == ".." || name == "/" {
		return invalid("credential %q is not a name", name)
	}
	return nil
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func checkVariable(name string) error {
	if !variableName.MatchString(name) {
		return invalid("variable %q is not a name", name)
	}
	return nil
}
