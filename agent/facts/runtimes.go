package facts

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/volagent/volagent/agent/container"
	"github.com/volagent/volagent/agent/doctor"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/plugin"
	"github.com/volagent/volagent/volmgr/volume"
)

// listWithin limits the time to list the volumes of a container runtime. Docker asks all its volume
// plugins before it answers.
const listWithin = 5 * time.Second

// runtimes returns the container runtimes that may use volumes of the agent.
func (c *collector) runtimes(ctx context.Context) doctor.Runtimes {
	out := doctor.Runtimes{Named: statedb.RuntimeVolumes.All(c.o.DB), Errs: map[string]error{}}
	for _, d := range c.o.Containers.Doubts() {
		out.Doubts = append(out.Doubts, doctor.Doubt{
			Runtime: d.Runtime, Name: d.Name, Volume: d.VolumeID, Alloc: d.Alloc, Since: d.Since, Leaked: d.Leaked, Of: d.Of, Kept: d.Kept,
		})
	}

	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()

	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, name := range []string{plugin.RuntimeDocker, plugin.RuntimePodman} {
		known := slices.ContainsFunc(out.Named, func(v volume.RuntimeVolume) bool { return v.Runtime == name })
		runtime := container.New(name).With(c.o.Plugins.Outside)
		unused := !known && !c.o.Serving
		if unused || !runtime.Installed() {
			continue
		}

		wg.Go(func() {
			volumes, err := runtime.LocalVolumes(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && known {
				out.Errs[name] = err
			}
			for _, v := range volumes {
				out.Locals = append(out.Locals, doctor.Local{Runtime: name, Name: v.Name, Path: v.Path})
			}
		})
	}

	wg.Wait()
	return out
}
