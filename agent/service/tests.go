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

// Tester runs the tests of plugins.
type Tester interface {
	// Run calls the function each after every check. It returns when it has removed the traces of
	// the test. An error of the function each ends the test.
	Run(ctx context.Context, id string, ask plugintest.Ask, each func(plugintest.Result) error) (plugintest.Summary, error)
}

// Tests answers requests to test plugins.
type Tests struct {
	plugins Plugins
	do      Tester
}

// Run tests a plugin, and calls the function each after every check. An error of that function ends
// the test.
func (t Tests) Run(ctx context.Context, by Caller, id string, req api.PluginTest, each func(api.PluginCheck) error) (api.PluginTestSummary, error) {
	if err := t.plugins.checkChange(by, id, api.Part{}); err != nil {
		return api.PluginTestSummary{}, err
	}
	ask, err := toAsk(req)
	if err != nil {
		return api.PluginTestSummary{}, asAPI(err)
	}

	sum, err := t.do.Run(ctx, id, ask, func(r plugintest.Result) error {
		return each(api.PluginCheck{
			Check: r.Check, Result: string(r.Verdict), Said: r.Said, TookMS: float64(r.Took.Microseconds()) / 1000})
	})

	return api.PluginTestSummary{
		Driver: sum.Driver, Version: sum.Version, NodeID: sum.NodeID, Mounts: sum.Mounts, FSType: sum.FSType,
		Attaches: sum.Attaches, Stages: sum.Stages, StageMounts: sum.StageMounts, Creates: sum.Creates,
		OK: sum.OK, WorkAround: sum.WorkAround, Broken: sum.Broken, Skipped: sum.Skip,
	}, t.plugins.explain(by, err, id)
}

func toAsk(q api.PluginTest) (ask plugintest.Ask, err error) {
	ask = plugintest.Ask{
		ExternalID: q.ExternalID, Context: q.Context, Parameters: q.Parameters, Capacity: q.Capacity,
		Access: call.AccessMode(q.AccessMode), Kill: q.Kill, Fence: q.Fence, Forget: q.Forget,
	}
	if q.MountOptions != nil {
		ask.MountOptions = call.MountOptions(*q.MountOptions)
	}
	if ask.Secrets, err = references(q.Secrets); err != nil {
		return ask, err
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

	if ask.Timeout, err = time.ParseDuration(q.Timeout); err != nil || ask.Timeout <= 0 {
		return ask, volume.Errorf(volume.ErrInvalid, "timeout %q is no duration such as 5m", q.Timeout)
	}

	return ask, nil
}
