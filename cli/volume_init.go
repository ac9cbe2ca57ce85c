package cli

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/agent/spec"
)

type volumeInitOptions struct{ file string }

func newVolumeInit(a *app) *cobra.Command {
	o := volumeInitOptions{file: "volume.yaml"}
	return &cobra.Command{
		Use: "init [FILE]", Short: "Write a commented volume file to start from",
		Long: `Write a commented volume file to start from. FILE is volume.yaml if left out, and - is
stdout. A file that exists is not overwritten.`,
		Example: "  volctl volume init data.yaml", Args: between(0, "FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.file = args[0]
			}
			return a.do(cmd, func(ctx context.Context, client *apiclient.Client, out *output) error {
				return runVolumeInit(ctx, o, client, out)
			})
		},
	}
}

func runVolumeInit(_ context.Context, o volumeInitOptions, _ *apiclient.Client, out *output) error {
	if o.file == "-" {
		return out.write([]byte(spec.Example()))
	}
	f, err := os.OpenFile(o.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return failed(&api.Error{Code: api.CodeRefused, Message: "the file exists", Hint: "volctl volume init ANOTHER-FILE"}, "write %q", o.file)
	}
	if err == nil {
		_, err = f.WriteString(spec.Example())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return failed(err, "write %q", o.file)
	}
	return out.print(map[string]string{"file": o.file}, []string{o.file}, func(w *bytes.Buffer) error {
		w.WriteString("wrote " + printable(o.file) + "; edit it, then: volctl volume create " + shellArg(o.file) + "\n")
		return nil
	})
}
