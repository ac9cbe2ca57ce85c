package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/fstab"
	"github.com/volagent/volagent/cli/command"
)

// These are the kinds of findings that volctl itself reports if no agent answers.
const (
	kindAgentDown     = "agent-down"
	kindAgentDisabled = "host-unit"
)

// aloneKinds lists the kinds of findings that volctl itself reports. A test checks that
// docs/doctor.md describes each of them.
var aloneKinds = []string{kindAgentDown, kindAgentDisabled}

// agentUnit is the name of the agent's service.
const agentUnit = "volagent.service"

// aloneWithin is the time limit for each request to systemd and each check of a directory.
const aloneWithin = 3 * time.Second

// alone runs the checks of "volctl doctor" that need no agent.
type alone struct{ *command.App }

// examine returns the reason why no agent answers, and mistakes in fstab and in mount units.
func (a alone) examine(ctx context.Context, err error) *api.Doctor {
	d := &api.Doctor{Time: a.Env.Now().UTC(), Findings: []api.DoctorFinding{}}
	d.Findings = append(d.Findings, a.agentDown(ctx, err)...)
	entries, unread := fstab.Read(fstab.System(a.Env.Getenv))
	for _, f := range fstab.Check(entries, func(dir string) fstab.Spot { return lookBounded(ctx, dir) }) {
		d.Findings = append(d.Findings, api.DoctorFinding{
			ID: f.Kind + ":" + f.Subject, Kind: f.Kind, Severity: f.Severity, Subject: f.Subject, What: f.What, Then: f.Then, Do: f.Do,
		})
	}

	if unread != nil {
		d.Findings = append(d.Findings, api.DoctorFinding{
			ID: fstab.Unread + ":fstab", Kind: fstab.Unread, Severity: api.SeverityWarning, Subject: "fstab",
			What: "fstab and the mount units cannot be read completely: " + unread.Error(), Then: "mistakes in the unread part are not reported", Do: "ls -l /etc/fstab /etc/systemd/system",
		})
	}

	rank := []string{api.SeverityProblem, api.SeverityWarning, api.SeverityNote}
	slices.SortStableFunc(d.Findings, func(a, b api.DoctorFinding) int {
		return slices.Index(rank, a.Severity) - slices.Index(rank, b.Severity)
	})

	seen := map[string]int{}
	// Two unknown options in the same line have findings with the same id, so number the findings.
	for i, f := range d.Findings {
		if seen[f.ID]++; seen[f.ID] > 1 {
			d.Findings[i].ID = fmt.Sprintf("%s#%d", f.ID, seen[f.ID])
		}
	}

	return d
}

func lookBounded(ctx context.Context, dir string) fstab.Spot {
	ctx, cancel := context.WithTimeout(ctx, aloneWithin)
	defer cancel()
	spot, err := command.WaitFor(ctx, func() (fstab.Spot, error) { return fstab.LookAt(dir), nil })
	if err != nil {
		return fstab.Spot{Fault: "it does not answer"}
	}
	return spot
}

// agentDown returns findings about an agent that does not answer. It asks systemd for the reason.
func (a alone) agentDown(ctx context.Context, err error) []api.DoctorFinding {
	down := api.DoctorFinding{
		ID: kindAgentDown + ":" + a.Socket, Kind: kindAgentDown, Severity: api.SeverityProblem, Subject: "agent", What: command.Wire(err).Message,
		Then: "mounts stay, but no volume can be mounted or unmounted; `volagent inspect` still compares the records with the mounts",
		Do:   "volagent inspect",
	}

	unit := map[string]string{}
	if a.Env.Service != nil {
		unit = a.Env.Service(ctx, agentUnit)
	}

	why, do := serviceWhy(unit)
	if why != "" {
		down.What += "; " + why
	}

	if do != "" {
		down.Do = do + "; " + down.Do
	}

	found := []api.DoctorFinding{down}
	if s := unit["UnitFileState"]; s == "disabled" || s == "masked" || s == "masked-runtime" {
		do := "systemctl enable " + agentUnit
		if s != "disabled" {
			do = "systemctl unmask " + agentUnit + " && " + do
		}
		found = append(found, api.DoctorFinding{
			ID: kindAgentDisabled + ":" + agentUnit, Kind: kindAgentDisabled, Severity: api.SeverityWarning, Subject: agentUnit,
			What: agentUnit + " is " + s, Then: "after a reboot no agent is started, and no volume is mounted", Do: do,
		})
	}

	return found
}

// serviceWhy explains the state of the agent's service according to systemd. The result do is the
// command that solves the problem.
func serviceWhy(unit map[string]string) (why, do string) {
	status := "systemctl status volagent"
	switch active := unit["ActiveState"]; {
	case len(unit) == 0:
		return "", status
	case unit["LoadState"] == "not-found":
		return "there is no " + agentUnit, ""
	case unit["LoadState"] == "masked":
		return agentUnit + " is masked", status
	case active == "failed":
		return fmt.Sprintf("%s has failed: %s", agentUnit, unit["Result"]), "journalctl -u volagent -n 50"
	case active == "inactive":
		return agentUnit + " is not started", "systemctl start volagent"
	case strings.HasPrefix(unit["SubState"], "auto-restart"):
		return fmt.Sprintf("%s ends soon after each start: %s", agentUnit, unit["Result"]), "journalctl -u volagent -n 50"
	case active == "active":
		return agentUnit + " runs: it listens on another socket, or does not answer", "volagent check-config"
	default:
		return fmt.Sprintf("%s is %s", agentUnit, active), status
	}
}

// AskService asks systemd for the properties of a unit. It returns nil if the host has no systemd,
// or if systemd does not answer.
func AskService(ctx context.Context, unit string) map[string]string {
	if info, err := os.Lstat("/run/systemd/system"); err != nil || !info.IsDir() {
		return nil
	}

	ctx, cancel := context.WithTimeout(ctx, aloneWithin)
	defer cancel()

	cmd := exec.CommandContext(ctx, "systemctl", "show", unit, "--property=LoadState,UnitFileState,ActiveState,SubState,Result")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil
	}

	facts := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			facts[key] = value
		}
	}

	return facts
}
