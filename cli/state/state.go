// Package state contains the commands of volctl that back up and restore the agent's state.
package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/apiclient"
	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/output"
	"github.com/volagent/volagent/volmgr/suggest"
)

// New returns the command group "volctl state".
func New(a *command.App) *cobra.Command {
	return command.Group("state", "Back up and restore the agent's state", "", newBackup(a), newRestore(a))
}

type backupOptions struct {
	file     string
	force    bool
	terminal bool // whether stdout is a terminal
}

func newBackup(a *command.App) *cobra.Command {
	var o backupOptions
	cmd := &cobra.Command{
		Use: "backup FILE|-", Short: "Write a backup of the agent's state",
		Long: `Write a backup of the agent's current state to a file, or to stdout for "-". The backup contains
volumes, claims, registered plugins, intents, pending calls and leftovers. The command writes the
complete file or no file. The backup does not contain the data in the volumes, the plugin files,
the configuration, or the key that seals secrets. Without that key, the sealed secrets in the
backup are useless. See docs/backup.md.`,
		Example: `  volctl state backup /var/backups/volagent.db --force
  volctl state backup - | ssh backup "cat > volagent.db"`,
		Args: command.Exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.file, o.terminal = args[0], a.Env.StdoutTerminal
			return a.Do(cmd, o.run)
		},
	}

	cmd.Flags().BoolVar(&o.force, "force", false, "overwrite an existing file")
	return cmd
}

// backedUp is the JSON output of "volctl state backup".
type backedUp struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	Node  string `json:"node"`

	// Key is the path of the file with the key for the sealed secrets in the backup. It is empty if
	// the key is a credential.
	Key string `json:"key"`
}

func (o backupOptions) run(ctx context.Context, client *apiclient.Client, out *output.Printer) error {
	if o.file == "-" {
		if o.terminal {
			return command.Usage("volctl state backup FILE", "a backup is not for a terminal")
		}
		return command.Failed(o.copy(ctx, client, out.Stdout), "back up the state")
	}

	if _, err := os.Lstat(o.file); err == nil && !o.force {
		return command.Failed(o.exists(), "write %q", o.file)
	}

	n, err := client.Node(ctx)
	if err != nil {
		return command.Failed(err, "back up the state")
	}

	bytesWritten, err := o.write(ctx, client)
	if err != nil {
		return command.Failed(err, "write the backup to %q", o.file)
	}

	done := backedUp{File: o.file, Bytes: bytesWritten, Node: n.ID, Key: filepath.Join(n.DataDir, "keys", "secrets.key")}
	return out.Print(done, []string{o.file}, func(w *bytes.Buffer) error {
		fmt.Fprintf(w, "wrote %s (%s), the state of node %q\n", output.Printable(o.file), output.Size(bytesWritten), n.ID)
		fmt.Fprintf(w, "sealed secrets in it need the key, which is not in it: the credential volagent.key or %s\n", output.Printable(done.Key))
		return nil
	})
}

func (o *backupOptions) exists() error {
	return &api.Error{Code: api.CodeRefused, Message: "the file exists", Hint: suggest.Command("volctl state backup %s --force", o.file)}
}

func (o *backupOptions) copy(ctx context.Context, client *apiclient.Client, to io.Writer) error {
	b, err := client.Backup(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	_, err = io.Copy(to, b)
	return err
}

// write writes the backup to a file. If it succeeds, the file is complete and synced to disk. If it
// fails, it leaves no file under the final name.
func (o *backupOptions) write(ctx context.Context, client *apiclient.Client) (written int64, err error) {
	dir := filepath.Dir(o.file)
	f, err := os.CreateTemp(dir, "."+filepath.Base(o.file)+".") // created with mode 0600
	if err != nil {
		return 0, bare(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()

	err = o.copy(ctx, client, f)
	if err == nil {
		err = f.Sync()
	}

	info, serr := f.Stat()
	if err = errors.Join(err, serr, f.Close()); err != nil {
		return 0, bare(err)
	}
	if err := o.rename(f.Name()); err != nil {
		return 0, err
	}

	return info.Size(), syncDir(dir)
}

// rename gives the temporary file its final name. Without --force, it does not replace an existing
// file, provided that the file system supports RENAME_NOREPLACE.
func (o *backupOptions) rename(tmp string) error {
	if o.force {
		return bare(os.Rename(tmp, o.file))
	}

	err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, o.file, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return o.exists()
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		// The file system does not support RENAME_NOREPLACE.
		return bare(os.Rename(tmp, o.file))
	}

	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return bare(err)
	}
	return bare(errors.Join(d.Sync(), d.Close()))
}

// bare removes the path from a file error, because the caller adds the path to the message.
func bare(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}

	return err
}
