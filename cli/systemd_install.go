package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/volmgr/suggest"
)

// installs writes the files where they belong, has systemd read them, and enables what
// is to be. It returns which were written; to do it again writes none. Nothing is
// written if any file is there that differs, unless that is forced.
func (o *systemdOptions) installs(ctx context.Context, g *generated) (written []string, err error) {
	for _, f := range g.Files {
		have, err := os.ReadFile(o.host.under(f.Path))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, accessError(err)
		case string(have) == f.Text:
			continue
		case !o.force:
			return nil, &api.Error{Code: api.CodeRefused, Message: f.Path + " is there, and differs", Hint: "--force replaces it"}
		}
		written = append(written, f.Path)
	}
	for _, f := range g.Files {
		if err := replaceFile(o.host.under(f.Path), f.Text); err != nil {
			return nil, accessError(err)
		}
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", "--quiet", "--", g.Enable}} {
		if err := o.host.Systemctl(ctx, args...); err != nil {
			return nil, hinted(&api.Error{Code: api.CodeFailed, Message: fmt.Sprintf("the units are written, and systemd does not take them: %v", err)},
				"systemctl daemon-reload && "+suggest.Command("systemctl enable %s", g.Enable))
		}
	}
	return written, nil
}

// accessError tells a person without the right to write from other failures.
func accessError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return &api.Error{Code: api.CodePermission, Message: err.Error(), Hint: "run it as root, or without --install"}
	}
	return err
}

// replaceFile writes a file as a whole, or leaves it as it was.
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
