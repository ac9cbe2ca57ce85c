package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/volagent/volagent/agent/api"
)

// JSON writes the report in JSON.
func (in *Report) JSON(w io.Writer) error {
	text, err := api.MarshalJSON(in)
	if err != nil {
		return err
	}

	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return err
	}

	b.WriteByte('\n')
	_, err = w.Write(b.Bytes())
	return err
}

// Text writes the report as text for people.
func (in *Report) Text(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("data dir  %s", in.DataDir)
	line("database  %s", in.DB)

	if in.AgentRunning {
		line("agent     running, and this copy may be older than its state; volctl shows the current state")
	} else {
		line("agent     not running")
	}

	if in.Draining {
		line("draining  new claims are refused; volctl node undrain")
	}
	mounts := func(ms []Mount) {
		for _, m := range ms {
			line("  %s  %s (%s)", m.Path, m.Is, m.What)
		}
	}
	list := func(title string, vs []Volume) {
		for _, v := range vs {
			line("%s %q  plugin %s  external id %q  attached %s  staged %s", title, v.ID, v.PluginID, v.ExternalID, v.Attached, v.Staged)
			if v.Hold != "" {
				line("  hold in the cluster: %s", v.Hold)
			}
			if v.Provision != "" {
				line("  %s was begun and has not been seen to end", v.Provision)
			}
			for _, c := range v.Claims {
				line("  claim of %q  %s%s", c.Alloc, c.State, c.more())
			}
			mounts(v.Mounts)
			for _, o := range v.PendingCalls {
				line("  pending call: %s", o)
			}
		}
	}

	list("volume", in.Volumes)
	list("leftover of volume", in.Leftovers)
	for _, t := range in.Tests {
		line("test of plugin %q  volume %q", t.Plugin, t.Volume)
		mounts(t.Mounts)
	}

	for _, p := range in.Plugins {
		is := "no process of it is recorded"
		if p.PID != 0 {
			is = fmt.Sprintf("pid %d, alive: %t", p.PID, p.Alive)
		}
		if p.Registered {
			is += "; registered at run time"
		}
		line("plugin %q  %s  %s", p.ID, p.Driver, is)
	}

	for _, v := range in.Runtimes {
		line("%s", v.text())
	}
	for _, p := range in.Pending {
		line("pending: %s: %s", p.Subject, p.Message)
	}
	for _, f := range in.Findings {
		line("finding: %s", f)
	}
	_, err := io.WriteString(w, api.Printable(b.String()))
	return err
}

// more returns the optional details of a claim.
func (c Claim) more() (words string) {
	if c.Owner != "" {
		words += "  owner " + c.Owner
	}
	if c.Adopted {
		words += "  adopted"
	}
	if c.Without != "" {
		words += "  detached without the plugin: " + c.Without
	}

	return words
}

// text describes the volume in one line.
func (v Runtime) text() string {
	refs := make([]string, 0, len(v.Refs))
	for _, r := range v.Refs {
		refs = append(refs, fmt.Sprintf("%s (claim of %q)", r.ID, r.Alloc))
	}
	words := "without references"
	if len(refs) > 0 {
		words = "referred to by " + strings.Join(refs, ", ")
	}
	if v.Deregistered {
		words += "; the volume was deregistered"
	}

	return fmt.Sprintf("name %q of %s  volume %q  %s", v.Name, v.Runtime, v.VolumeID, words)
}
