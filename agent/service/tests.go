package service

import (
	"context"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/plugintest"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// Tests converts the tests of plugins for the API.
type Tests struct{ Of *plugintest.Service }

// TestPlugin runs a test.
func (t Tests) TestPlugin(ctx context.Context, id string, q api.PluginTest, each func(api.PluginCheck) error) (api.PluginTestSummary, error) {
	ask, err := toAsk(q)
	if err != nil {
		return api.PluginTestSummary{}, err
	}

	sum, err := t.Of.Run(ctx, id, ask, func(r plugintest.Result) error {
		return each(api.PluginCheck{
			Check: r.Check, Result: string(r.Verdict), Said: r.Said, TookMS: float64(r.Took.Microseconds()) / 1000})
	})

	return api.PluginTestSummary{
		Driver: sum.Driver, Version: sum.Version, NodeID: sum.NodeID, Mounts: sum.Mounts, FSType: sum.FSType,
		Attaches: sum.Attaches, Stages: sum.Stages, StageMounts: sum.StageMounts, Creates: sum.Creates,
		OK: sum.OK, WorkAround: sum.WorkAround, Broken: sum.Broken, Skipped: sum.Skip,
	}, err
}

func toAsk(q api.PluginTest) (plugintest.Ask, error) {
	ask := plugintest.Ask{
		ExternalID: q.ExternalID, Context: q.Context, Parameters: q.Parameters, Capacity: q.Capacity,
		Access: call.AccessMode(q.AccessMode), Kill: q.Kill, Forget: q.Forget,
	}
	if q.MountOptions != nil {
		ask.MountOptions = call.MountOptions(*q.MountOptions)
	}
	for name, ref := range q.Secrets {
		if ask.Secrets == nil {
			ask.Secrets = map[string]call.SecretRef{}
		}
		if _, literal := ref.Literal.Reveal(); literal || ref.Sealed {
			return ask, volume.Errorf(volume.ErrInvalid, "secret %q is no reference: a test takes {file: PATH}, {credential: NAME} or {env: NAME}", name)
		}

		ask.Secrets[name] = call.SecretRef{File: ref.File, Credential: ref.Credential, Env: ref.Env}
	}

	if ask.Access != "" {
		if err := volume.CheckCapability(call.Capability{Access: ask.Access, Attachment: call.FileSystem}); err != nil {
			return ask, err
		}
	}

	if len(ask.Context) > 0 && ask.ExternalID == "" {
		return ask, volume.Errorf(volume.ErrInvalid, "a context belongs to a volume that is given by its external id")
	}
	if ask.Capacity < 0 {
		return ask, volume.Errorf(volume.ErrInvalid, "a size cannot be negative")
	}
	if strings.TrimSpace(q.Timeout) == "" {
		return ask, nil
	}

	var err error
	if ask.Timeout, err = time.ParseDuration(q.Timeout); err != nil || ask.Timeout <= 0 {
		return ask, volume.Errorf(volume.ErrInvalid, "timeout %q is no duration such as 5m", q.Timeout)
	}

	return ask, nil
}
