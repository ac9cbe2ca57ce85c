package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/volmgr/suggest"
)

// installs writes the unit files, reloads systemd, and enables the unit. It returns the paths of
// the files that it has written. It skips files that already have the right contents. If an
// existing file has other contents, installs writes nothing and returns an error. With --force, it
// replaces the file.
func (o *generateOptions) installs(ctx context.Context, g *generated) (written []string, err error) {
	for _, f := range g.Files {
		have, err := os.ReadFile(o.host.Under(f.Path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, accessError(err)
		case string(have) == f.Text:
			continue
		case !o.force:
			return nil, &api.Error{Code: api.CodeRefused, Message: f.Path + " exists and differs", Hint: "--force replaces it"}
		}

		written = append(written, f.Path)
	}

	for _, f := range g.Files {
		if err := replaceFile(o.host.Under(f.Path), f.Text); err != nil {
			return nil, accessError(err)
		}
	}

	for _, args := range [][]string{{"daemon-reload"}, {"enable", "--quiet", "--", g.Enable}} {
		if err := o.host.Systemctl(ctx, args...); err != nil {
			return nil, command.Hinted(&api.Error{Code: api.CodeFailed, Message: fmt.Sprintf("the units are written, but systemd does not accept them: %v", err)},
				"systemctl daemon-reload && "+suggest.Command("systemctl enable %s", g.Enable))
		}
	}

	return written, nil
}

// accessError adds an exit code and a hint to a permission error.
func accessError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return &api.Error{Code: api.CodePermission, Message: err.Error(), Hint: "run it as root, or without --install"}
	}
	return err
}

// replaceFile replaces a file atomically. If it fails, the old file remains unchanged.
func replaceFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}

	f, err := os.CreateTemp(filepath.Dir(path), ".volctl-*")
	if err != nil {
		return err
	}

	_, err = f.WriteString(text)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}

	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}

	return nil
}
