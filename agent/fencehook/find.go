package fencehook

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/volagent/volagent/agent/api"
)

// Kind is the kind of a hook.
type Kind string

// These are the kinds of hooks.
const (
	KindExecutable Kind = "executable"  // an executable of the operator
	KindAgent      Kind = "fence-agent" // a file NAME.agent, which configures an agent of fence-agents
)

// agentSuffix is the end of the name of a file that configures a fence agent.
const agentSuffix = ".agent"

// hookName matches the names of hooks. It excludes the files that editors and package managers leave
// behind, such as bmc~ and bmc.dpkg-old.
var hookName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]*(\.agent)?$`)

// Hook is a file in the directory of the hooks.
type Hook struct {
	Name    string // the name of the file
	Kind    Kind
	Path    string
	Refused error    // why the hook is not called; nil if it is called
	Hosts   []string // the hosts that a fence agent serves; executables decide themselves

	run   string // the real path of the program
	agent *agentFile
	trust trust
}

// Find returns all hooks in the order of their names. A hook that is refused has the reason in
// Refused. If the directory does not exist, there are no hooks.
func (h *Hooks) Find() ([]Hook, error) {
	dir, err := h.trust.directory(h.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use fence hooks: %w", err)
	}

	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, fmt.Errorf("cannot read the fence hooks: %w", err)
	}

	var hooks []Hook
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		hooks = append(hooks, h.hook(e.Name()))
	}
	return hooks, nil
}

// hook examines one file of the directory.
func (h *Hooks) hook(name string) Hook {
	hook := Hook{Name: api.Printable(name), Kind: KindExecutable, Path: filepath.Join(h.dir, name), trust: h.trust}
	if strings.HasSuffix(name, agentSuffix) {
		hook.Kind = KindAgent
	}

	switch {
	case !hookName.MatchString(name):
		hook.Refused = errors.New("its name contains other characters than letters, digits, hyphens and underscores; rename the file, or move it elsewhere")
	case hook.Kind == KindAgent:
		hook.Refused = hook.readAgent()
	default:
		hook.run, hook.Refused = h.trust.executable(hook.Path)
	}
	return hook
}

// readAgent reads the file of a fence agent, and checks the files that it names.
func (h *Hook) readAgent() error {
	path, err := h.trust.private(h.Path)
	if err != nil {
		return err
	}
	if h.agent, err = readAgentFile(path); err != nil {
		return err
	}
	h.Hosts = h.agent.hostNames()

	for _, secret := range h.agent.secretFiles() {
		if _, err := h.trust.private(secret); err != nil {
			return err
		}
	}
	h.run, err = h.trust.executable(h.agent.program)
	return err
}

// mayServe reports whether the hook must be called for a host. An executable is called for every host,
// and decides itself.
func (h *Hook) mayServe(host string) bool {
	return h.Kind == KindExecutable || h.agent.serves(host)
}

// program returns the program that carries out an action.
func (h *Hook) program(action Action, t Target) (program, error) {
	p := program{path: h.run, name: h.Path, env: environment(t)}
	if h.Kind == KindExecutable {
		p.args = []string{string(action), t.Host}
		return p, nil
	}

	p.name = h.agent.program
	var err error
	p.stdin, p.secrets, err = h.agent.input(h.trust, action, t.Host)
	return p, err
}

// maxVariable is the maximum length of a variable in the environment of a hook, in bytes.
const maxVariable = 1 << 10

// environment returns the environment of a hook. It contains nothing of the environment of the agent,
// which may contain secrets.
func environment(t Target) []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LC_ALL=C",
	}
	for _, v := range [][2]string{
		{"HOST", t.Host}, {"MACHINE_ID", t.MachineID}, {"DMI_UUID", t.DMIUUID}, {"REASON", t.Reason},
	} {
		value := strings.Join(strings.Fields(api.Printable(v[1])), " ")
		env = append(env, "VOLAGENT_"+v[0]+"="+head(value, maxVariable))
	}
	return env
}
