package fencehook

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/volagent/volagent/volmgr/untrusted"
)

const (
	maxAgentFile  = 256 << 10 // bytes
	maxSecretFile = 4 << 10   // bytes
)

// fromFile is the start of a value that is read from a file.
const fromFile = "file:"

// agentFile is the file of a fence agent:
//
//	agent = /usr/sbin/fence_ipmilan
//	username = volagent
//	password = file:/etc/volagent/bmc.password
//
//	[db1]
//	ip = 192.0.2.11
//
// Options before the first section are for all hosts. The agent serves the hosts that have a section.
type agentFile struct {
	program string
	common  options
	hosts   map[string]options
}

// options are options of a fence agent, in the order of the file.
type options []option

type option struct{ name, value string }

// with returns the options, where those of others replace options with the same name.
func (o options) with(others options) options {
	kept := slices.DeleteFunc(slices.Clone(o), func(a option) bool {
		return slices.ContainsFunc(others, func(b option) bool { return same(a.name, b.name) })
	})
	return append(kept, others...)
}

// same reports whether fence agents treat two names of options as the same.
func same(a, b string) bool {
	return strings.ReplaceAll(a, "-", "_") == strings.ReplaceAll(b, "-", "_")
}

func (o options) has(name string) bool {
	return slices.ContainsFunc(o, func(x option) bool { return same(x.name, name) })
}

var optionName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// secretName matches the names of options whose values are secret, also if the file contains them.
var secretName = regexp.MustCompile(`(?i)passw|secret|token|community|hexadecimal[-_]kg`)

// secret reports whether the value of an option must not appear in an output. The value of an option
// such as password_script is the path of a program.
func (o option) secret() bool {
	return secretName.MatchString(o.name) && !strings.HasSuffix(strings.ToLower(o.name), "script")
}

// readAgentFile reads the file of a fence agent. Its errors contain no values, because these may be
// secrets.
func readAgentFile(path string) (*agentFile, error) {
	raw, err := untrusted.ReadFile(path, maxAgentFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the file: %w", err)
	}
	return parseAgentFile(string(raw))
}

func parseAgentFile(text string) (*agentFile, error) {
	f := &agentFile{hosts: map[string]options{}}
	host := ""
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		var err error
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '[':
			host, err = f.addHost(line)
		default:
			err = f.addOption(host, line)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}

	switch {
	case f.program == "":
		return nil, errors.New("it has no line \"agent = /usr/sbin/fence_…\" before the first section")
	case len(f.hosts) == 0:
		return nil, errors.New("it has no section [HOST], so it serves no host")
	default:
		return f, nil
	}
}

// addHost reads the first line of a section, and returns the name of the host.
func (f *agentFile) addHost(line string) (string, error) {
	host, ok := strings.CutSuffix(line[1:], "]")
	if !ok {
		return "", errors.New("a section must have the form [HOST]")
	}

	host = strings.TrimSpace(host)
	if err := checkHost(host); err != nil {
		return "", err
	}
	if _, twice := f.hosts[host]; twice {
		return "", fmt.Errorf("host %q has two sections", host)
	}
	f.hosts[host] = nil
	return host, nil
}

// addOption reads a line with an option, of one host or (if host is empty) of all hosts.
func (f *agentFile) addOption(host, line string) error {
	name, value, ok := strings.Cut(line, "=")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	secretFile, read := strings.CutPrefix(value, fromFile)
	switch {
	case !ok:
		return errors.New("it has no \"=\"")
	case !optionName.MatchString(name):
		return errors.New("the name of an option may contain only letters, digits, hyphens and underscores")
	case name == "action" || name == "option":
		return fmt.Errorf("option %s is not allowed, because volagent chooses the action", name)
	case strings.ContainsRune(value, 0):
		return fmt.Errorf("the value of option %s contains a zero byte", name)
	case read && !filepath.IsAbs(secretFile):
		return fmt.Errorf("option %s needs an absolute path after %q", name, fromFile)
	case name == "agent":
		return f.setProgram(host, value)
	}

	list := f.common
	if host != "" {
		list = f.hosts[host]
	}
	if list.has(name) {
		return fmt.Errorf("option %s is given twice", name)
	}

	list = append(list, option{name, value})
	if host == "" {
		f.common = list
	} else {
		f.hosts[host] = list
	}
	return nil
}

func (f *agentFile) setProgram(host, path string) error {
	switch {
	case host != "":
		return errors.New("option agent must be before the first section")
	case f.program != "":
		return errors.New("option agent is given twice")
	case !filepath.IsAbs(path):
		return errors.New("option agent needs the absolute path of a fence agent")
	default:
		f.program = path
		return nil
	}
}

func (f *agentFile) hostNames() []string { return slices.Sorted(maps.Keys(f.hosts)) }

func (f *agentFile) serves(host string) bool {
	_, ok := f.hosts[host]
	return ok
}

// secretFiles returns the files that contain values.
func (f *agentFile) secretFiles() []string {
	var files []string
	for _, list := range append(slices.Collect(maps.Values(f.hosts)), f.common) {
		for _, o := range list {
			if path, ok := strings.CutPrefix(o.value, fromFile); ok {
				files = append(files, path)
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// input returns the standard input of the fence agent, and the secrets in it. If a name occurs twice,
// fence agents use the last value. The action is therefore the last line.
func (f *agentFile) input(t trust, action Action, host string) (stdin string, secrets []string, err error) {
	list := f.common.with(f.hosts[host])
	if !list.has("nodename") {
		list = append(list, option{"nodename", host})
	}

	var b strings.Builder
	for _, o := range list {
		if path, ok := strings.CutPrefix(o.value, fromFile); ok {
			o.value, err = readSecret(t, path)
			if err != nil {
				return "", nil, fmt.Errorf("cannot read option %s: %w", o.name, err)
			}
			secrets = append(secrets, o.value)
		} else if o.secret() && o.value != "" {
			secrets = append(secrets, o.value)
		}
		b.WriteString(o.name + "=" + quoted(o.value) + "\n")
	}

	b.WriteString("action=" + string(action) + "\n")
	return b.String(), secrets, nil
}

// quoted returns a value in the form that fence agents read. They remove spaces around the value, and
// then one pair of quotation marks.
func quoted(value string) string {
	inMarks := len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"'
	if inMarks || value != strings.TrimSpace(value) {
		return `"` + value + `"`
	}
	return value
}

// readSecret reads a value from a file that only root can read.
func readSecret(t trust, path string) (string, error) {
	path, err := t.private(path)
	if err != nil {
		return "", err
	}
	raw, err := untrusted.ReadFile(path, maxSecretFile)
	if err != nil {
		return "", err
	}

	value := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	switch {
	case value == "":
		return "", fmt.Errorf("%s is empty", path)
	case strings.ContainsAny(value, "\n\r\x00"):
		return "", fmt.Errorf("%s must contain only one line", path)
	default:
		return value, nil
	}
}
