package plugin

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
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// adoption describes the registration of volumes that the storage has.
type adoption struct {
	external                      []string // the external ids
	all                           bool
	accessModes                   []string
	attachmentMode, fsType, scope string
	mountFlags, secrets           []string
	secretRefs                    map[string]api.Secret
	ask                           command.Asker
}

// describing lists the flags that need --register or --all.
var describing = []string{"access-mode", "attachment-mode", "fs-type", "mount-flag", "secret", "scope", "yes"}

func (o *adoption) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVar(&o.external, "register", nil, "register the volume with this `EXTERNAL-ID`; may be repeated")
	f.BoolVar(&o.all, "all", false, "register all volumes that are not registered")
	f.StringArrayVar(&o.accessModes, "access-mode", nil, "access `MODE` that claims may use; may be repeated (default "+spec.DefaultAccessMode+")")
	f.StringVar(&o.attachmentMode, "attachment-mode", spec.DefaultAttachmentMode, "attachment `MODE`: file-system or block-device")
	f.StringVar(&o.fsType, "fs-type", "", "file system `TYPE` of the volumes")
	f.StringArrayVar(&o.mountFlags, "mount-flag", nil, "mount `OPTION`; may be repeated")
	f.StringArrayVar(&o.secrets, "secret", nil, command.SecretUsage)
	f.StringVar(&o.scope, "scope", "", "`SCOPE` of the volumes: host or shared (default that of the plugin)")
	command.CompleteChoice(cmd, "access-mode", spec.AccessModes())
	command.CompleteChoice(cmd, "attachment-mode", spec.AttachmentModes())
	command.CompleteChoice(cmd, "scope", []string{api.ScopeHost, api.ScopeShared})
}

func (o *adoption) wanted() bool { return o.all || len(o.external) > 0 }

// read checks the flags. The argument ask is nil if volctl cannot ask, or need not because of -y.
func (o *adoption) read(cmd *cobra.Command, ask command.Asker, yes bool) (err error) {
	if !o.wanted() {
		for _, name := range describing {
			if cmd.Flags().Changed(name) {
				return command.Usage("", "--%s needs --register or --all", name)
			}
		}
		return nil
	}

	if o.all && len(o.external) > 0 {
		return command.Usage("", "--all and --register exclude each other")
	}
	if cmd.Flags().Changed("limit") {
		return command.Usage("", "--limit applies only to a list; a registration needs the complete list")
	}
	if len(o.accessModes) == 0 {
		o.accessModes = []string{spec.DefaultAccessMode}
	}
	for _, mode := range o.accessModes {
		err = errors.Join(err, command.OneOf("access-mode", mode, spec.AccessModes()))
	}
	err = errors.Join(err, command.OneOf("attachment-mode", o.attachmentMode, spec.AttachmentModes()))
	if o.scope != "" {
		err = errors.Join(err, command.OneOf("scope", o.scope, []string{api.ScopeHost, api.ScopeShared}))
	}
	if err != nil {
		return err
	}

	if o.secretRefs, err = command.SecretRefs(o.secrets); err != nil {
		return err
	}
	if o.ask = ask; ask == nil && !yes {
		return command.Usage("-y", "asking for confirmation needs a terminal")
	}
	return nil
}

// storage identifies storage by the driver or the plugin that serves it.
type storage struct{ driver, plugin, external string }

// known contains the volumes of this host, and the shared volumes of its cluster.
type known struct {
	ids     map[string]bool
	storage map[storage]bool
}

// knownVolumes asks the agent for all registered volumes. If the cluster does not answer, it notes that
// its shared volumes are missing.
func knownVolumes(ctx context.Context, client *apiclient.Client, out *output.Printer) (known, error) {
	volumes, warnings, err := client.AllVolumes(ctx)
	k := known{map[string]bool{}, map[storage]bool{}}
	for _, v := range volumes {
		k.ids[v.Spec.ID] = true
		if v.Spec.ExternalID != "" {
			k.storage[storage{driver: v.Driver, external: v.Spec.ExternalID}] = true
			k.storage[storage{plugin: v.Spec.PluginID, external: v.Spec.ExternalID}] = true
		}
	}

	for _, w := range warnings {
		out.Note("warning: %s; shared volumes of the cluster may appear as not registered", w)
	}
	return k, err
}

// has reports whether the storage of a plugin is registered under any id.
func (k known) has(p *api.Plugin, external string) bool {
	byDriver := p.Provider != "" && k.storage[storage{driver: p.Provider, external: external}]
	return byDriver || k.storage[storage{plugin: p.ID, external: external}]
}

// listError explains why the volumes of a plugin cannot be listed. Many plugins have no such call, and
// their volumes can be registered by hand.
func listError(ctx context.Context, client *apiclient.Client, err error, p *api.Plugin) error {
	if command.CodeOf(err) == api.CodeRefused {
		err = command.Hinted(err, "write a file with the external id of each volume, and register it: volctl volume register FILE")
	}
	return command.Failed(command.ExplainPlugin(ctx, client, err, p.ID), "list the volumes of plugin %q", p.ID)
}

// planned is a volume to register.
type planned struct {
	spec     api.VolumeSpec
	storage  api.StorageVolume
	warnings []string
}

// register registers volumes that the storage has.
func (o volumesOptions) register(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	what := func(err error) error { return command.Failed(err, "register volumes of plugin %q", o.id) }
	if err := command.CheckPluginID(o.id); err != nil {
		return what(err)
	}
	p, err := client.Plugin(ctx, o.id)
	if err != nil {
		return what(command.ExplainPlugin(ctx, client, err, o.id))
	}
	known, err := knownVolumes(ctx, client, out)
	if err != nil {
		return what(err)
	}

	var all []api.StorageVolume
	_, err = client.PluginVolumes(ctx, p.ID, 0, func(v api.StorageVolume) error {
		all = append(all, v)
		return nil
	})
	if err != nil {
		return listError(ctx, client, err, p)
	}

	plan, errs := o.adopt.plan(p, known, all)
	if len(plan)+len(errs) == 0 {
		return out.Print([]*api.VolumeResult{}, nil, output.NothingToDo)
	}
	if len(plan) > 0 {
		if err := o.adopt.confirm(ctx, out, p, plan); err != nil {
			return what(err)
		}
	}

	return o.adopt.apply(ctx, client, out, plan, errs)
}

// plan decides which volumes are registered, and under which ids. An external id that the storage does
// not have, or that is registered, gives an error, and the other volumes are still registered.
func (o *adoption) plan(p *api.Plugin, known known, all []api.StorageVolume) (plan []planned, errs []error) {
	taken := func(id string) bool { return known.ids[id] }
	wanted := map[string]bool{}
	for _, external := range o.external {
		wanted[external] = true
	}

	for _, v := range all {
		isKnown := v.Volume != "" || known.has(p, v.ExternalID)
		isWanted := o.all || wanted[v.ExternalID]
		switch {
		case isWanted && !isKnown:
			one := planned{spec: o.spec(p, &v, spec.DeriveID(v.ExternalID, taken)), storage: v, warnings: elsewhere(p, &v)}
			known.ids[one.spec.ID] = true
			plan = append(plan, one)
		case wanted[v.ExternalID]:
			errs = append(errs, command.Failed(&api.Error{Code: api.CodeRefused, Message: "it is registered already", Hint: "volctl volume list"},
				"register volume %q", v.ExternalID))
		}
		delete(wanted, v.ExternalID)
	}

	for _, external := range o.external {
		if wanted[external] {
			delete(wanted, external)
			errs = append(errs, command.Failed(&api.Error{
				Code: api.CodeNotFound, Message: fmt.Sprintf("plugin %q lists no such volume", p.ID),
				Hint: suggest.Command("volctl plugin volumes %s --unregistered", p.ID),
			}, "register volume %q", external))
		}
	}

	return plan, errs
}

// spec describes a volume of the storage. With reclaim: retain, no container runtime destroys the data.
func (o *adoption) spec(p *api.Plugin, v *api.StorageVolume, id string) api.VolumeSpec {
	s := api.VolumeSpec{
		ID: id, PluginID: p.ID, ExternalID: v.ExternalID, Context: v.Context,
		Secrets: o.secretRefs, Reclaim: api.ReclaimRetain, Scope: o.scope,
	}
	for _, mode := range o.accessModes {
		s.Capabilities = append(s.Capabilities, api.Capability{AccessMode: mode, AttachmentMode: o.attachmentMode})
	}
	if o.fsType != "" || len(o.mountFlags) > 0 {
		s.MountOptions = &api.MountOptions{FSType: o.fsType, MountFlags: o.mountFlags}
	}
	return s
}

// elsewhere warns of a volume that the storage has connected to another host.
func elsewhere(p *api.Plugin, v *api.StorageVolume) (warnings []string) {
	for _, node := range v.PublishedNodes {
		switch {
		case p.NodeID == "":
			warnings = append(warnings, fmt.Sprintf("it is published on node %q; the node id of this host is unknown", node))
		case node != p.NodeID:
			warnings = append(warnings, fmt.Sprintf("it is published on node %q, which is not this host (%q): another host may write to it", node, p.NodeID))
		}
	}
	return warnings
}

// confirm shows the plan and asks the user. A program gets the warnings in the results.
func (o *adoption) confirm(ctx context.Context, out *output.Printer, p *api.Plugin, plan []planned) error {
	err := out.Show(func(w *bytes.Buffer) error {
		var rows [][]string
		for _, one := range plan {
			v := &one.storage
			rows = append(rows, []string{one.spec.ID, v.ExternalID, output.SizeOrDash(v.Capacity), output.Dash(strings.Join(v.PublishedNodes, ","))})
		}
		return out.Table(w, "", []string{"New ID", "External ID", "Capacity", "Nodes"}, rows)
	})
	if err != nil {
		return err
	}

	if out.Human() {
		for _, one := range plan {
			for _, w := range one.warnings {
				out.Note("warning: volume %q: %s", one.spec.ID, w)
			}
		}
	}

	if o.ask == nil {
		return nil
	}
	yes, err := o.ask(ctx, fmt.Sprintf("Register %s of plugin %q?", output.Count(len(plan), "volume"), p.ID))
	if err != nil || !yes {
		return command.NotConfirmed(err)
	}
	return nil
}

// apply registers the volumes one after the other, and continues after a failure. The argument errs
// contains the errors so far.
func (o *adoption) apply(ctx context.Context, client *apiclient.Client, out *output.Printer, plan []planned, errs []error) error {
	results, ids := []*api.VolumeResult{}, []string{}
	for i, one := range plan {
		id := one.spec.ID
		end := out.During(ctx, fmt.Sprintf("registering volume %q", id), command.PluginProgress(client, one.spec.PluginID))
		r, err := client.RegisterVolume(ctx, one.spec, false)
		end()

		if ctx.Err() != nil && err != nil {
			untried := fmt.Sprintf("it was interrupted; %d of %s were not tried", len(plan)-i-1, output.Count(len(plan), "volume"))
			errs = append(errs, command.Failed(command.Interrupted(untried, suggest.Command("volctl plugin volumes %s --unregistered", one.spec.PluginID)), "register volume %q", id))
			break
		}
		if err != nil {
			errs = append(errs, command.Failed(command.ExplainPlugin(ctx, client, err, one.spec.PluginID), "register volume %q as %q", one.spec.ExternalID, id))
			continue
		}

		r.Warnings = slices.Concat(r.Warnings, one.warnings)
		results, ids = append(results, r), append(ids, id)
		if err := out.Say("%s volume %q (external id %q)", r.Outcome, id, one.spec.ExternalID); err != nil {
			return err
		}
	}

	if !out.Human() || out.Quiet {
		if err := out.Print(results, ids, nil); err != nil {
			return err
		}
	}

	return command.Join(errs)
}
