package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/output"
)

// CheckVolumeID returns a usage error for an invalid volume id before volctl sends a request.
func CheckVolumeID(id string) error {
	if err := spec.CheckVolumeID(id); err != nil {
		return Usage("an id has 1 to 128 printable characters, without a slash", "%v", err)
	}
	return nil
}

// CheckAlloc returns a usage error for an invalid alloc before volctl sends a request.
func CheckAlloc(alloc string) error {
	if err := spec.CheckAlloc(alloc); err != nil {
		return Usage("an alloc has 1 to 128 printable characters, without a slash", "%v", err)
	}
	return nil
}

// CheckPluginID returns a usage error for an invalid plugin id before volctl sends a request.
func CheckPluginID(id string) error {
	if err := spec.CheckPluginID(id); err != nil {
		return Usage("volctl plugin list", "%v", err)
	}
	return nil
}

// CheckClassID returns a usage error for an invalid id of a class before volctl sends a request.
func CheckClassID(id string) error {
	if err := spec.CheckClassID(id); err != nil {
		return Usage("volctl class list", "%v", err)
	}
	return nil
}

// FindClass returns the class with the given id. The argument may also be the beginning of an id, if
// only one id begins with it. Commands that change something must not use FindClass.
func FindClass(ctx context.Context, client *apiclient.Client, id string) (*api.Class, error) {
	if err := CheckClassID(id); err != nil {
		return nil, err
	}

	c, err := client.Class(ctx, id)
	if !IsNotFound(err) {
		return c, err
	}

	ids, listErr := ClassIDs(ctx, client)
	if listErr != nil {
		return nil, listErr
	}

	full, err := complete("class", id, ids, err)
	if err != nil {
		return nil, err
	}

	return client.Class(ctx, full)
}

// FindVolume returns the volume with the given id. The argument may also be the beginning of an id,
// if only one id begins with it. Commands that change something must not use FindVolume.
func FindVolume(ctx context.Context, client *apiclient.Client, id string) (*api.Volume, error) {
	if err := CheckVolumeID(id); err != nil {
		return nil, err
	}

	v, err := client.Volume(ctx, id)
	if !IsNotFound(err) {
		return v, err
	}

	ids, listErr := VolumeIDs(ctx, client)
	if listErr != nil {
		return nil, listErr
	}

	full, err := complete("volume", id, ids, err)
	if err != nil {
		return nil, err
	}

	return client.Volume(ctx, full)
}

// FindAnyVolume is like FindVolume, and also finds the shared volumes of the host's cluster. If the
// cluster is not reachable, it returns the volume as this host knows it, and warnings.
func FindAnyVolume(ctx context.Context, client *apiclient.Client, id string) (*api.Volume, []string, error) {
	if err := CheckVolumeID(id); err != nil {
		return nil, nil, err
	}

	v, warnings, err := client.AnyVolume(ctx, id)
	if !IsNotFound(err) {
		return v, warnings, err
	}

	volumes, _, listErr := client.AllVolumes(ctx)
	if listErr != nil {
		return nil, nil, listErr
	}
	ids := make([]string, len(volumes))
	for i, v := range volumes {
		ids[i] = v.Spec.ID
	}

	full, err := complete("volume", id, ids, err)
	if err != nil {
		return nil, nil, err
	}
	return client.AnyVolume(ctx, full)
}

// FindPlugin returns the plugin with the given id. The argument may also be the beginning of an id,
// if only one id begins with it. Commands that change something must not use FindPlugin.
func FindPlugin(ctx context.Context, client *apiclient.Client, id string) (*api.Plugin, error) {
	if err := CheckPluginID(id); err != nil {
		return nil, err
	}

	p, err := client.Plugin(ctx, id)
	if !IsNotFound(err) {
		return p, err
	}

	ids, listErr := PluginIDs(ctx, client)
	if listErr != nil {
		return nil, listErr
	}

	full, err := complete("plugin", id, ids, err)
	if err != nil {
		return nil, err
	}

	return client.Plugin(ctx, full)
}

// complete returns the only id that begins with prefix. It returns a usage error if there are
// several. If there is none, it adds similar ids to the error notFound and returns it.
func complete(kind, prefix string, ids []string, notFound error) (string, error) {
	var found []string
	for _, id := range ids {
		if strings.HasPrefix(id, prefix) {
			found = append(found, id)
		}
	}

	switch len(found) {
	case 0:
		return "", nearby(notFound, kind, prefix, ids)
	case 1:
		return found[0], nil
	}

	return "", &api.Error{
		Code: api.CodeInvalid, Message: fmt.Sprintf("%q is the beginning of %s: %s", prefix, output.Count(len(found), kind), output.QuotedList(found)),
		Hint: "give the complete id", Details: map[string]string{"matches": strings.Join(found, "\n")},
	}
}

// nearby adds ids that are similar to the given id to a not-found error.
func nearby(err error, kind, id string, ids []string) error {
	var e *api.Error
	if !errors.As(err, &e) {
		return err
	}

	near := spec.Near(id, ids)
	if len(near) == 0 {
		if e.Hint != "" {
			return err
		}
		return Hinted(err, "volctl "+kind+" list")
	}

	with := *e
	with.Hint = "near: " + output.QuotedList(near) + "; all: volctl " + kind + " list"
	with.Details = map[string]string{"near": strings.Join(near, "\n")}
	for k, v := range e.Details {
		with.Details[k] = v
	}

	return &with
}

// Explain adds suggestions to the not-found error of a command that changes state. If the volume
// exists, it suggests the allocs that have claims on the volume. Otherwise it suggests similar
// volume ids.
func Explain(ctx context.Context, client *apiclient.Client, err error, volume string, allocs ...string) error {
	if !IsNotFound(err) {
		return err
	}

	volumes, listErr := client.Volumes(ctx)
	if listErr != nil {
		return err // err is more useful to the user than listErr
	}

	var ids []string
	for _, v := range volumes {
		if v.Spec.ID != volume {
			ids = append(ids, v.Spec.ID)
			continue
		}

		if len(allocs) == 0 {
			return err
		}

		var held []string
		for _, c := range v.Claims {
			held = append(held, c.Alloc)
		}

		return nearby(err, "claim", allocs[0], held)
	}

	return nearby(err, "volume", volume, ids)
}

// ExplainPlugin adds similar plugin ids to the not-found error of a request for a plugin.
func ExplainPlugin(ctx context.Context, client *apiclient.Client, err error, plugin string) error {
	if !IsNotFound(err) {
		return err
	}

	ids, listErr := PluginIDs(ctx, client)
	if listErr != nil {
		return err
	}

	for _, id := range ids {
		if id == plugin {
			return err
		}
	}

	return nearby(err, "plugin", plugin, ids)
}

// ExplainClass adds similar ids of classes to the not-found error of a request that names a class.
func ExplainClass(ctx context.Context, client *apiclient.Client, err error, class string) error {
	if !IsNotFound(err) {
		return err
	}

	ids, listErr := ClassIDs(ctx, client)
	if listErr != nil || slices.Contains(ids, class) {
		return err
	}

	return nearby(err, "class", class, ids)
}

// ClassIDs lists the ids of all classes, without duplicates. A class whose file contains no valid id
// is missing.
func ClassIDs(ctx context.Context, client *apiclient.Client) ([]string, error) {
	classes, err := client.Classes(ctx)
	ids := []string{}
	for _, c := range classes {
		if c.Spec.ID != "" && !slices.Contains(ids, c.Spec.ID) {
			ids = append(ids, c.Spec.ID)
		}
	}
	return ids, err
}

// VolumeIDs lists the ids of all volumes.
func VolumeIDs(ctx context.Context, client *apiclient.Client) ([]string, error) {
	volumes, err := client.Volumes(ctx)
	ids := make([]string, len(volumes))
	for i, v := range volumes {
		ids[i] = v.Spec.ID
	}
	return ids, err
}

// PluginIDs lists the ids of all plugins.
func PluginIDs(ctx context.Context, client *apiclient.Client) ([]string, error) {
	plugins, err := client.Plugins(ctx)
	ids := make([]string, len(plugins))
	for i, p := range plugins {
		ids[i] = p.ID
	}
	return ids, err
}
