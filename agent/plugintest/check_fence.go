package plugintest

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/volagent/volagent/volmgr/call"
)

func needFence(r *run) string {
	if !r.ask.Fence {
		return "this check needs --fence"
	}
	if why := needCreated(r); why != "" {
		return why
	}
	if why := needAttach(r); why != "" {
		return why
	}
	return needWrite(r)
}

// checkFence detaches the volume from this host while the host writes to it. After the plugin's OK, no
// further write may succeed, because another host relies on that when it takes the volume over.
func checkFence(ctx context.Context, r *run) finding {
	w, err := startWriter(ctx, filepath.Join(r.rec.Targets[first], r.rec.File+"-fence"))
	if err != nil {
		return skipped("cannot start a process: %v", err)
	}

	f := r.detachUnder(ctx, w)
	err = errors.Join(w.stop(), r.takeBack(ctx))
	if err != nil && f.verdict == OK {
		return copes("%s; but the volume cannot be unmounted: %v", f.said, err)
	}
	return f
}

// detachUnder detaches the volume while a process writes to it, and judges the writes after the detach.
func (r *run) detachUnder(ctx context.Context, w *writer) finding {
	if err := w.write(ctx); err != nil {
		return skipped("cannot write before the detach: %v", err)
	}

	r.dirty = true // the mounts may hang from now on
	if err := r.controllerUnpublish(ctx); err != nil {
		return copes("%s; the plugin does not detach a volume in use, so a detach alone cuts no host off", words(err))
	}

	switch err := w.write(ctx); {
	case err == nil:
		return broken("the plugin answers OK, but this host can still write to the volume; its plugin file must not have fence: detach")
	case ctx.Err() != nil:
		return skipped("%s", context.Cause(ctx))
	case errors.Is(err, errNoWriter):
		return skipped("cannot write after the detach: %v", err)
	default:
		return r.judgeList(ctx, err)
	}
}

// judgeList checks that the plugin does not list this host as one that has the volume. The parameter
// failed is the error of the write after the detach.
func (r *run) judgeList(ctx context.Context, failed error) finding {
	said := "after the detach, a write fails (" + failed.Error() + ")"
	if errors.Is(failed, errHangs) {
		said = "after the detach, a write hangs"
	}
	lists := r.info.Caps.Get || r.info.Caps.List
	if !r.info.Caps.PublishedNodes || !lists {
		return fine("%s", said)
	}

	ctx, cancel := context.WithTimeout(ctx, appearWithin)
	defer cancel()
	for {
		nodes, err := r.published(ctx)
		switch {
		case err != nil:
			return broken("%s, but the plugin cannot list the nodes of the volume: %s", said, words(err))
		case !slices.Contains(nodes, r.info.NodeID):
			return fine("%s, and the plugin no longer lists this host", said)
		}

		pause(ctx, appearEvery)
		if ctx.Err() != nil {
			return broken("%s, but the plugin still lists this host as one to which the volume is attached; the agent does not take the detach as proof", said)
		}
	}
}

// published returns the nodes to which the volume is attached, as the plugin lists them.
func (r *run) published(ctx context.Context) (nodes []string, err error) {
	if r.info.Caps.Get {
		err = r.call("ControllerGetVolume", func(p Plugin) error {
			one, err := call.Do(ctx, p, call.GetVolumeRequest{ExternalID: r.vol.ExternalID})
			nodes = one.PublishedNodes
			return err
		})
		return nodes, err
	}

	request := call.ListVolumesRequest{}
	for {
		var page call.VolumePage
		err := r.call("ListVolumes", func(p Plugin) (err error) { page, err = call.Do(ctx, p, request); return err })
		if err != nil {
			return nil, err
		}
		for _, one := range page.Entries {
			if one.ExternalID == r.vol.ExternalID {
				return one.PublishedNodes, nil
			}
		}
		if page.Next == "" || page.Next == request.Token {
			return nil, nil
		}
		request.Token = page.Next
	}
}

// takeBack unmounts the volume after checkFence. Some plugins cannot unstage a volume that is not
// attached, so it attaches the volume again if the first try fails.
func (r *run) takeBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoWithin)
	defer cancel()

	err := r.down(ctx)
	if err == nil {
		return nil
	}
	if again := r.attach(ctx); again != nil {
		return err
	}
	return r.down(ctx)
}
