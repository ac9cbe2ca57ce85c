package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

type doctorOptions struct {
	fix bool
	yes bool
	ask command.Asker // nil if volctl cannot ask, or with -y

	// alone runs the checks that need no agent.
	alone alone
}

// NewDoctor returns the command "volctl doctor".
func NewDoctor(a *command.App) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check this host for problems and suggest fixes",
		Long: `Compare the agent's records with the mount table, the plugins, the devices, and the volumes in
fstab and in mount units. Each finding describes a problem, its consequence, and the command that
helps. docs/doctor.md has a section for each kind of finding. The command calls no plugin and does
not wait for storage that hangs.

With --fix, the command shows the findings and asks for confirmation. Then the agent makes the
safe fixes: it removes empty leftover directories, corrects the notes, and retries steps that are
stuck. It unmounts nothing and removes no file that a person wrote. Finally, the command shows the
remaining findings.

The exit code is 0 if there are no findings, and 1 if there are any. If no agent answers, the
command looks for the reason, checks fstab and the mount units, and exits 7.`,
		Example: "  volctl doctor\n  volctl doctor --fix -y\n  volctl doctor -o json",
		Args:    command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.ask, o.alone = a.Asker(o.yes), alone{a}
			if o.yes && !o.fix {
				return command.Usage("volctl doctor --fix -y", "-y goes with --fix only")
			}
			return a.Do(cmd, o.run)
		},
	}

	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.fix, "fix", false, "make the safe fixes, after showing the findings")
	f.BoolVarP(&o.yes, "yes", "y", false, "with --fix: do not ask for confirmation")

	return cmd
}

// treatment is the JSON output of "volctl doctor --fix": the outcomes of the fixes, and the
// remaining findings.
type treatment struct {
	Fixed []api.DoctorFixed `json:"fixed"`
	*api.Doctor
}

func (o doctorOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	found, err := examine(ctx, client)
	if err != nil {
		return examinedAlone(ctx, o, err, out)
	}
	if !o.fix {
		return diagnosed(found, out.Print(found, findingIDs(found), func(w *bytes.Buffer) error { return doctorScreen(w, out, found) }))
	}
	if err := out.Show(func(w *bytes.Buffer) error { return doctorScreen(w, out, found) }); err != nil {
		return err
	}

	ids := fixable(found)
	fixed := []api.DoctorFixed{}

	if len(ids) > 0 {
		if fixed, err = treat(ctx, o, ids, client, out); err != nil {
			return command.Failed(err, "fix the findings")
		}
		if found, err = examine(ctx, client); err != nil {
			return command.Failed(err, "check the host after the fixes")
		}
	}

	return diagnosed(found, out.Print(treatment{fixed, found}, findingIDs(found), func(w *bytes.Buffer) error {
		return treatedScreen(w, out, fixed, found)
	}))
}

func examine(ctx context.Context, client *apiclient.Client) (*api.Doctor, error) {
	ctx, cancel := context.WithTimeout(ctx, command.ReadTimeout)
	defer cancel()
	return client.Doctor(ctx)
}

// examinedAlone runs the checks that need no agent, and shows the findings. The first finding says
// that the agent does not answer, and this also decides the exit code.
func examinedAlone(ctx context.Context, o doctorOptions, err error, out *output.Printer) error {
	if code := command.CodeOf(err); code == api.CodeUnreachable || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		found := o.alone.examine(ctx, err)
		if perr := out.Print(found, findingIDs(found), func(w *bytes.Buffer) error { return doctorScreen(w, out, found) }); perr != nil {
			return perr
		}
		return &api.Error{Code: command.Wire(err).Code, Message: counted(found) + "; the records and mounts of the agent were not checked"}
	}
	return command.Failed(err, "ask the agent for its findings")
}

// fixAtOnce is the maximum number of findings in one request for fixes.
const fixAtOnce = 1000

// treat asks the user for confirmation, and then requests the fixes from the agent.
func treat(ctx context.Context, o doctorOptions, ids []string, client *apiclient.Client, out *output.Printer) (all []api.DoctorFixed, err error) {
	if !o.yes {
		if o.ask == nil {
			return nil, command.Usage("volctl doctor --fix -y", "it changes the host, and asking for confirmation needs a terminal")
		}
		if yes, err := o.ask(ctx, "Apply the fixes of "+output.Count(len(ids), "finding")+"?"); err != nil || !yes {
			return nil, command.NotConfirmed(err)
		}
	}

	for some := range slices.Chunk(ids, fixAtOnce) {
		fixed, err := client.DoctorFix(ctx, some)
		all = append(all, fixed...)
		if err != nil {
			for _, f := range all {
				out.Note("%s", fixedLine(f))
			}
			return all, err
		}
	}

	return all, nil
}

// diagnosed returns err if it is not nil. Otherwise it returns an error that contains the number of
// findings. If there are no findings, it returns nil.
func diagnosed(d *api.Doctor, err error) error {
	if err != nil || len(d.Findings) == 0 {
		return err
	}
	e := &api.Error{Code: api.CodeFailed, Message: counted(d)}
	if n := len(fixable(d)); n > 0 {
		e.Hint = "to fix " + output.Count(n, "finding") + ": volctl doctor --fix"
	}
	return e
}

// counted returns a text with the number of findings of each severity.
func counted(d *api.Doctor) string {
	by := map[string]int{}
	for _, f := range d.Findings {
		by[f.Severity]++
	}

	var words []string
	for _, s := range []string{api.SeverityProblem, api.SeverityWarning, api.SeverityNote} {
		if by[s] > 0 {
			words = append(words, output.Count(by[s], s))
		}
	}

	return strings.Join(words, ", ")
}

func findingIDs(d *api.Doctor) (ids []string) {
	for _, f := range d.Findings {
		ids = append(ids, f.ID)
	}
	return ids
}

func fixable(d *api.Doctor) (ids []string) {
	for _, f := range d.Findings {
		if f.Fix != "" {
			ids = append(ids, f.ID)
		}
	}
	return ids
}

// alike is the maximum number of findings of the same kind on a screen. With -o wide, the screen
// shows all of them.
const alike = 10

func doctorScreen(w *bytes.Buffer, out *output.Printer, d *api.Doctor) error {
	checked := fmt.Sprintf("%s, %s, %s checked", output.Count(d.Volumes, "volume"), output.Count(d.Claims, "claim"), output.Count(d.Plugins, "plugin"))
	if len(d.Findings) == 0 {
		w.WriteString("no findings: " + checked + "\n")
		return nil
	}

	shown, hidden := map[string]int{}, 0
	for _, f := range d.Findings {
		if shown[f.Kind]++; shown[f.Kind] > alike && !out.Wide() {
			hidden++
			continue
		}
		if err := findingScreen(w, out, f); err != nil {
			return err
		}
	}

	if hidden > 0 {
		fmt.Fprintf(w, "%s more like these: volctl doctor -o wide\n\n", output.Count(hidden, "finding"))
	}

	if d.Volumes+d.Claims+d.Plugins > 0 {
		w.WriteString(checked + "\n")
	}

	return nil // diagnosed returns the error with the number of findings
}

// findingScreen writes a finding and an empty line.
func findingScreen(w *bytes.Buffer, out *output.Printer, f api.DoctorFinding) error {
	what := f.What
	if f.Subject != "" && !strings.Contains(what, f.Subject) {
		what = f.Subject + "  " + what
	}

	out.Headline(w, "", severity(out, f.Severity), what)
	var lines []output.Field
	for _, l := range [][2]string{{"Then", f.Then}, {"Do", f.Do}, {"Fix", f.Fix}} {
		if l[1] != "" {
			lines = append(lines, output.Named(l[0], l[1]))
		}
	}

	if err := out.Fields(w, "  ", lines); err != nil {
		return err
	}

	w.WriteString("\n")
	return nil
}

// severity returns the mark for a severity on a screen.
func severity(out *output.Printer, s string) string {
	switch s {
	case api.SeverityProblem:
		return out.Mark(output.Bad)
	case api.SeverityWarning:
		return "!"
	default:
		return "·"
	}
}

func fixedLine(f api.DoctorFixed) string {
	return output.Joined(": ", output.Joined(" ", f.Outcome, f.ID), f.Message)
}

// treatedScreen writes the outcomes of the fixes, and the remaining findings.
func treatedScreen(w *bytes.Buffer, out *output.Printer, fixed []api.DoctorFixed, left *api.Doctor) error {
	if len(fixed) == 0 {
		if len(left.Findings) > 0 {
			w.WriteString("\nno finding can be fixed automatically\n")
		}
		return nil
	}

	w.WriteString("\n")
	for _, f := range fixed {
		out.Line(w, "", fixedLine(f))
	}

	w.WriteString("\n")
	return doctorScreen(w, out, left)
}
