package systemd

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/failover"
	"github.com/volagent/volagent/volmgr/suggest"
)

// failoverOptions holds the flags for units that run a service on one of several hosts. Package
// failover describes the units.
type failoverOptions struct {
	on, docker bool
	prefer     []string
	delay      time.Duration
}

// volctl is the path of the program in the generated units.
const volctl = "/usr/bin/volctl"

// checkFailover returns an error for flags that do not fit together, or that cannot be in a unit.
func (o *generateOptions) checkFailover() error {
	f := o.failover
	switch {
	case !f.on && (f.docker || len(f.prefer) > 0):
		return command.Usage("add --failover", "--docker and --prefer need --failover")
	case !f.on:
		return nil
	case o.automount:
		return command.Usage("leave out --automount", "--automount and --failover exclude each other")
	case filepath.Ext(o.consumer) != ".service":
		return command.Usage("--for web.service", "--failover needs --for with the service that it starts and stops")
	case len(failover.Unit(o.consumer)) > unitPathMax:
		return command.Usage("choose a shorter name", "the name of %s is too long for a unit that refers to it", o.consumer)
	case o.parsed.Alloc != "":
		return command.Usage("leave out alloc=", "with --failover, the alloc is the service")
	case command.CheckAlloc(o.consumer) != nil:
		return command.CheckAlloc(o.consumer)
	}

	for i, host := range f.prefer {
		if host == "" || strings.ContainsFunc(host, unicode.IsSpace) || notInUnit(host) != "" || slices.Contains(f.prefer[:i], host) {
			return command.Usage("volctl node list", "--prefer needs the ids of hosts, each once: %q is not possible", host)
		}
	}

	return failover.CheckDelay(f.delay)
}

// checkShared returns an error if no other host can have the volume.
func checkShared(v *api.Volume) error {
	if v.Scope == api.ScopeShared {
		return nil
	}
	return &api.Error{
		Code: api.CodeRefused, Message: "the volume belongs to this host alone, so no other host can run the service",
		Hint: suggest.Command("volctl volume share %s", v.Spec.ID),
	}
}

// failoverUnits returns the unit that waits for the volume, and the drop-in that binds the service to
// this unit. With --docker, it also returns the service.
func (o *generateOptions) failoverUnits() *generated {
	unit := failover.Unit(o.consumer)
	g := &generated{Enable: unit}
	g.Files = append(g.Files,
		unitFile{filepath.Join(unitDir, unit), o.failoverText()},
		unitFile{filepath.Join(unitDir, o.consumer+".d", "failover.conf"), o.failoverDropIn(unit)})
	if o.failover.docker {
		g.Files = append(g.Files, unitFile{filepath.Join(unitDir, o.consumer), o.containersText()})
	}
	return g
}

func (o *generateOptions) failoverText() string {
	words := []string{volctl, "failover", "run", o.consumer, o.parsed.Volume, o.dir}
	if len(o.failover.prefer) > 0 {
		words = append(words, "--prefer", strings.Join(o.failover.prefer, ","), "--delay", o.failover.delay.String())
	}
	for _, option := range o.options {
		words = append(words, "--options", option)
	}

	return fmt.Sprintf(`[Unit]
Description=%s on the host that has volume %s
# The agent claims the volume. It starts before this unit, and stops after it.
Wants=volagent.service
After=volagent.service
# It never stops trying.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart=%s
# Each run is one attempt: it waits for the volume, and ends when this host gives the volume up.
Restart=always
RestartSec=2s
# If it is killed, the service stops.
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
`, specifiers(o.consumer), specifiers(o.parsed.Volume), execLine(words))
}

func (o *generateOptions) failoverDropIn(unit string) string {
	return fmt.Sprintf(`# Only %[1]s starts this service, on the host that has volume %[2]s.
[Unit]
BindsTo=%[1]s
After=%[1]s
AssertPathIsMountPoint=%[3]s
`, specifiers(unit), specifiers(o.parsed.Volume), specifiers(o.dir))
}

func (o *generateOptions) containersText() string {
	return fmt.Sprintf(`[Unit]
Description=Containers with the label %s=%s
Wants=docker.service
After=docker.service

[Service]
Type=exec
ExecStart=%s
ExecStopPost=%s
TimeoutStopSec=5min
`, failover.Label, specifiers(o.parsed.Volume),
		execLine([]string{volctl, "failover", "containers", o.parsed.Volume}),
		execLine([]string{volctl, "failover", "containers", "--stop", o.parsed.Volume}))
}

// execLine returns a command line for a service (systemd.service(5), "COMMAND LINES"). systemd runs no
// shell, but it replaces specifiers and variables.
func execLine(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = strings.NewReplacer("%", "%%", "$", "$$").Replace(word)
		if word == "" || word == ";" || strings.ContainsAny(word, " \"'\\") {
			quoted[i] = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(quoted[i]) + `"`
		}
	}
	return strings.Join(quoted, " ")
}
