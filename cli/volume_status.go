package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
)

// statsTimeout bounds how long a status screen waits to say how full a volume
// is: storage that hangs must not hang its status.
const statsTimeout = 800 * time.Millisecond

type volumeStatusOptions struct{ id string }

func newVolumeStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "status [ID]", Short: "Show a volume, its claims, and what it waits for",
		Long: `Show a volume: its state, its claims, and if it is stuck at which step, who holds it and
which command helps. The beginning of an id is enough. Without an id, list all.`,
		Args: between(0, "ID"), ValidArgsFunction: completeArg(a, volumeIDs),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.read(cmd, runVolumeList)
			}
			o := volumeStatusOptions{id: args[0]}
			return a.read(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runVolumeStatus(ctx, o, client, out)
			})
		},
	}
}

func runVolumeStatus(ctx context.Context, o volumeStatusOptions, client *apiclient.Client, out *output) error {
	v, err := findVolume(ctx, client, o.id)
	if err != nil {
		return failed(err, "show volume %q", o.id)
	}
	return out.print(v, []string{v.Spec.ID}, func(w *bytes.Buffer) error {
		return volumeScreen(w, out, v, use(ctx, client, v))
	})
}

// use asks how full a mounted volume is. No answer in time is no answer.
func use(ctx context.Context, client *apiclient.Client, v *api.Volume) *api.Stats {
	if v.State != api.StateMounted {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	stats, err := client.VolumeStats(ctx, v.Spec.ID)
	if err != nil {
		return nil
	}
	return stats
}

func volumeScreen(w *bytes.Buffer, out *output, v *api.Volume, stats *api.Stats) error {
	lines := []pair{{out.mark(healthy(v)) + " " + oneLine(v.Spec.ID) + "  " + volumeSummary(v, out.now()), volumeAside(v, stats)}}
	if v.Attempt != nil {
		lines = append(lines, attemptLines(v.Attempt, out.now())...)
	}
	plugin := v.Spec.PluginID
	if about := joined(" ", v.Driver, v.PluginVersion); about != "" {
		plugin += " (" + about + ")"
	}
	lines = append(lines, field("Plugin", joined(" ", plugin, v.PluginState), joined("  ", v.Spec.ExternalID, joined(" ", v.MountSource, v.FSType))))
	lines = append(lines, modeLines(v)...)
	for _, debt := range v.Debts {
		lines = append(lines, field("Owed", debt, ""))
	}
	for _, note := range v.Notes {
		lines = append(lines, field("Note", note, ""))
	}
	pairs(w, lines)
	if len(v.Claims) == 0 {
		return nil
	}
	rows := make([][]string, len(v.Claims))
	for i, c := range v.Claims {
		rows[i] = []string{c.Alloc, readWrite(c.ReadOnly), claimState(&c), dash(c.Owner), since(out.now(), c.Since), dash(c.Path)}
	}
	return table(w, "  ", []string{"ALLOC", "MODE", "STATE", "OWNER", "SINCE", "PATH"}, rows)
}

func healthy(v *api.Volume) bool {
	return v.State != api.StateStuck && v.State != api.StateDegraded
}

// volumeSummary is the agent's sentence, and for how long the trouble lasts.
func volumeSummary(v *api.Volume, now time.Time) string {
	text := v.Summary
	if text == "" {
		text = v.State
	}
	if !healthy(v) && v.Attempt != nil && !v.Attempt.First.IsZero() {
		text += ", " + since(now, v.Attempt.First)
	}
	return oneLine(text)
}

// volumeAside is what the first line says at the right: how safe the data is in
// trouble, else how full the volume is.
func volumeAside(v *api.Volume, stats *api.Stats) string {
	if v.DataSafe != "" || v.StillMounted != "" {
		return oneLine("data safe: "+dash(v.DataSafe)) + "   " + oneLine("still mounted: "+dash(v.StillMounted))
	}
	var parts []string
	switch {
	case stats != nil && stats.BytesTotal > 0:
		unit := sizeUnit(stats.BytesTotal)
		parts = append(parts, fmt.Sprintf("%s/%s %s", inUnit(stats.BytesUsed, unit), size(stats.BytesTotal), percent(stats.BytesUsed, stats.BytesTotal)))
	case v.Capacity > 0:
		parts = append(parts, size(v.Capacity))
	}
	if stats != nil && stats.InodesTotal > 0 {
		parts = append(parts, "inodes "+percent(stats.InodesUsed, stats.InodesTotal))
	}
	return strings.Join(parts, "  ")
}

func attemptLines(at *api.Attempt, now time.Time) []pair {
	step := at.Step
	if at.Index > 0 && at.Of > 0 {
		step = fmt.Sprintf("%d/%d %s", at.Index, at.Of, at.Step)
	}
	if at.Alloc != "" {
		step += " for " + at.Alloc
	}
	switch {
	case at.Running:
		step += ", running"
	case at.Code != "":
		step += " → " + at.Code
	}
	lines := []pair{field("Step", step, "")}
	if at.Message != "" {
		lines = append(lines, field("Said", `"`+oneLine(at.Message)+`"`, ""))
	}
	if at.Tries > 0 {
		lines = append(lines, field("Tried", tried(at, now), ""))
	}
	for _, holder := range at.HeldBy {
		lines = append(lines, field("Held by", holder, ""))
	}
	if at.Fix != "" {
		lines = append(lines, field("Fix", at.Fix, ""))
	}
	if at.Else != "" {
		lines = append(lines, field("Else", at.Else, ""))
	}
	return lines
}

func tried(at *api.Attempt, now time.Time) string {
	text := fmt.Sprintf("%d×", at.Tries)
	if !at.First.IsZero() {
		first := at.First.In(now.Location())
		form := time.TimeOnly
		if now.Sub(first) > 20*time.Hour {
			form = time.DateTime
		}
		text += ", first " + first.Format(form)
	}
	switch {
	case at.Running:
	case !at.Next.IsZero():
		text += ", next " + in(now, at.Next)
	case at.Retry == "change":
		text += ", next when something changes"
	case at.Retry == "never":
		text += ", not again by itself"
	}
	return text
}

// modeLines show the mode in force, or those that a claim may choose from.
func modeLines(v *api.Volume) []pair {
	controller := "controller: " + yesNo(v.Controller)
	if v.Mode != nil {
		return []pair{field("Mode", v.Mode.AccessMode+", "+v.Mode.AttachmentMode, controller)}
	}
	lines := []pair{field("Mode", "none", controller)}
	for _, c := range v.Spec.Capabilities {
		lines = append(lines, field("Offers", c.AccessMode+", "+c.AttachmentMode, ""))
	}
	return lines
}
