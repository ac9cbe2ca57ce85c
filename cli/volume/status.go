package volume

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
)

// reportWithin and reportTimeout limit how long the command waits for the plugin's report on a
// volume. The command must take less than a second even if the storage hangs. After reportWithin,
// the agent answers and lists the requests that the plugin has not answered.
const (
	reportWithin  = 350 * time.Millisecond
	reportTimeout = 400 * time.Millisecond
)

type statusOptions struct{ id string }

// NewStatus returns the command "volctl volume status".
func NewStatus(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status [ID]", Short: "Show a volume, its claims, and the reason if it waits",
		Long: `Show a volume with its state and claims. For a stuck volume, show the step, the users that hold
it, and the command that helps. The command asks the plugin how full and how healthy the volume
is, if the plugin supports that. With -o wide, it also asks the controller about the volume, and
shows the gRPC codes of failed calls. With -o json, it shows the last answers instead. A unique
prefix of the id is enough. Without an id, list all volumes. For a shared volume, the command shows
the hosts that hold it, also if this host does not use it.`,
		Args: command.Between(0, "ID"), ValidArgsFunction: command.CompleteArg(a, command.VolumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.Read(cmd, runList)
			}
			o := statusOptions{id: args[0]}
			return a.Read(cmd, o.run)
		},
	}
	command.NomadFlags(cmd.Flags(), "verbose", "namespace", "type")
	return cmd
}

func (o statusOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	v, warnings, err := command.FindAnyVolume(ctx, client, o.id)
	if err != nil {
		return command.Failed(err, "show volume %q", o.id)
	}
	out.Warn(warnings)
	return out.Print(v, []string{v.Spec.ID}, func(w *bytes.Buffer) error {
		ask(ctx, client, v, out.Wide())
		return statusScreen(w, out, v)
	})
}

// ask replaces the last report in v with a current report from the plugin. If the plugin does not
// answer in time, ask keeps the last report. It asks only if the volume is mounted or free, because
// a plugin may hang if it examines a mount that hangs. JSON output always contains the last report,
// because programs may run the command often.
func ask(ctx context.Context, client *apiclient.Client, v *api.Volume, storage bool) {
	if v.PluginState != api.PluginReady || v.State != api.StateMounted && v.State != api.StateFree {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if r, err := client.VolumeReport(ctx, v.Spec.ID, reportWithin, storage); err == nil {
		v.Report = r
	}
}

func statusScreen(w *bytes.Buffer, out *output.Printer, v *api.Volume) error {
	facts := append([]string{v.Spec.ID + "  " + volumeSummary(v, out.Now())}, volumeFacts(v, out.Now())...)
	out.Headline(w, "", out.Mark(volumeCondition(v)), facts...)

	var lines []output.Field
	if v.Attempt != nil {
		lines = attemptLines(v.Attempt, out.Now(), out.Wide())
	}

	plugin := v.Spec.PluginID
	if about := output.Joined(" ", v.Driver, v.PluginVersion); about != "" {
		plugin += " (" + about + ")"
	}

	lines = append(lines, output.Named("Plugin", output.Joined(" ", plugin, v.PluginState), v.Spec.ExternalID, output.Joined(" ", out.Source(v.MountSource), v.FSType)))
	if v.Class != "" {
		lines = append(lines, output.Named("Class", v.Class))
	}
	lines = append(lines, clusterLines(v, out)...)
	lines = append(lines, modeLines(v)...)
	lines = append(lines, storageLines(v)...)
	lines = append(lines, reportLines(v.Report, out.Now())...)
	for _, debt := range v.PendingCalls {
		lines = append(lines, output.Named("Pending", debt))
	}

	for _, note := range v.Notes {
		lines = append(lines, output.Named("Note", note))
	}

	if err := out.Fields(w, "  ", lines); err != nil {
		return err
	}
	if err := holdTable(w, out, v.Holds); err != nil || len(v.Claims) == 0 {
		return err
	}

	return claimTable(w, out, v.Claims)
}

// claimTable writes a table of the claims of a volume. It has a column for notes if any claim has a
// note.
func claimTable(w *bytes.Buffer, out *output.Printer, claims []api.Claim) error {
	header := []string{"Alloc", "Mode", "State", "Owner", "Since", "Path"}
	noted := slices.ContainsFunc(claims, func(c api.Claim) bool { return c.Note != "" })
	if noted {
		header = append(header, "Note")
	}

	rows := make([][]string, len(claims))
	for i, c := range claims {
		rows[i] = []string{c.Alloc, output.ReadWrite(c.ReadOnly), claimState(&c), ownerText(&c), output.Since(out.Now(), c.Since), output.Dash(c.Path)}
		if noted {
			rows[i] = append(rows[i], output.Dash(c.Note))
		}
	}

	return out.Table(w, "  ", header, rows)
}

// volumeCondition returns the condition of a volume. The condition is Good only if no step is
// running or remains to be done.
func volumeCondition(v *api.Volume) output.Condition {
	settled := v.State == api.StateMounted || v.State == api.StateFree || v.State == api.StateHeld
	switch {
	case !healthy(v) || !well(v.Report):
		return output.Bad
	case !settled || v.Attempt != nil:
		return output.Changing
	default:
		return output.Good
	}
}

func healthy(v *api.Volume) bool {
	return v.State != api.StateStuck && v.State != api.StateDegraded
}

// volumeSummary returns the agent's summary of the volume, and the duration of the problem if there
// is one.
func volumeSummary(v *api.Volume, now time.Time) string {
	text := cmp.Or(v.Summary, v.State)
	if !healthy(v) && v.Attempt != nil && !v.Attempt.First.IsZero() {
		text += ", " + output.Since(now, v.Attempt.First)
	}

	if v.State == api.StateMounted && v.AnswersMS > 0 {
		text += fmt.Sprintf(", answers in %dms", max(1, int(math.Round(v.AnswersMS))))
	}

	return output.OneLine(text)
}

func attemptLines(at *api.Attempt, now time.Time, wide bool) []output.Field {
	var lines []output.Field
	add := func(name, text string) {
		if text != "" {
			lines = append(lines, output.Named(name, text))
		}
	}

	if at.Waits == "" && at.Step != "wait" {
		add("Step", step(at, wide))
	}

	switch {
	case at.Message == "":
	case at.Code == api.CodeHost || at.Code == api.CodeUnverified:
		add("Why", at.Message)
	default:
		add("Said", `"`+output.OneLine(at.Message)+`"`)
	}

	add("Waits", waits(at, now))
	if at.Tries > 0 {
		add("Tried", tried(at, now))
	}

	for _, holder := range at.HeldBy {
		add("Held by", holder)
	}

	for _, line := range at.PluginLog {
		add("Log", line)
	}

	add("Fix", at.Fix)
	add("Else", at.Else)
	return lines
}

// step describes the current step of a volume and its result. With -o wide, the text contains the
// gRPC code.
func step(at *api.Attempt, wide bool) string {
	text := at.Step
	if at.Index > 0 && at.Of > 0 {
		text = fmt.Sprintf("%d/%d %s", at.Index, at.Of, at.Step)
	}

	if at.Alloc != "" {
		text += " for " + at.Alloc
	}

	switch {
	case at.Running:
		return text + ", running"
	case at.Code == api.CodeHost:
		return text + " → failed on this host"
	case at.Code == api.CodeUnverified:
		return text + " → OK, but this host shows otherwise"
	case at.Code == "":
		return text
	}

	code, outcome := "", ""
	if wide {
		code = at.Code
	}

	switch {
	case at.Unsent:
		outcome = "not sent"
	case at.Unknown:
		outcome = "outcome unknown"
	}

	text += " → " + output.CodeWords(at.Code)
	if more := output.Joined(", ", code, outcome); more != "" {
		text += " (" + more + ")"
	}

	return text
}

// waits returns the reason why a volume waits, and when the wait ends, if this is known.
func waits(at *api.Attempt, now time.Time) string {
	if at.Waits == "" || at.Next.IsZero() {
		return at.Waits
	}
	if at.Cause == api.CauseWatch {
		return fmt.Sprintf("%s; until %s, %s", at.Waits, clock(at.Next, now), output.In(now, at.Next))
	}
	return at.Waits + "; next check " + output.In(now, at.Next)
}

// clock formats a time of day. If the time is more than 20 hours away, it adds the date.
func clock(t, now time.Time) string {
	t = t.In(now.Location())
	if now.Sub(t).Abs() > 20*time.Hour {
		return t.Format(time.DateTime)
	}
	return t.Format(time.TimeOnly)
}

func tried(at *api.Attempt, now time.Time) string {
	text := fmt.Sprintf("%d×", at.Tries)
	if !at.First.IsZero() {
		text += ", first " + clock(at.First, now)
	}

	switch {
	case at.Running:
	case !at.Next.IsZero():
		text += ", next " + output.In(now, at.Next)
	case at.Retry == api.RetryChange:
		text += ", next when something changes"
	case at.Retry == api.RetryNever:
		text += ", no automatic retry"
	}

	return text
}

// modeLines returns a line with the current mode of the volume. If the volume has no current mode,
// it also returns lines with the modes that a claim can choose.
func modeLines(v *api.Volume) []output.Field {
	controller := "controller: " + output.YesNo(v.Controller)
	if v.Mode != nil {
		return []output.Field{output.Named("Mode", v.Mode.AccessMode+", "+v.Mode.AttachmentMode, controller)}
	}

	lines := []output.Field{output.Named("Mode", "none", controller)}
	for _, c := range v.Spec.Capabilities {
		lines = append(lines, output.Named("Offers", c.AccessMode+", "+c.AttachmentMode))
	}

	return lines
}
