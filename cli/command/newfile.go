package command

import (
	"bytes"
	"errors"
	"io/fs"
	"os"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/cli/output"
)

// WriteNew writes text to a new file, or to stdout if the file is "-". Then it prints next, the
// command that the user can run next. It never overwrites a file. If the file exists, the error
// suggests the command another, which writes to a different file.
func WriteNew(out *output.Printer, text, file, another, next string) error {
	if file == "-" {
		return out.Write([]byte(text))
	}

	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return Failed(&api.Error{Code: api.CodeRefused, Message: "the file exists", Hint: another}, "write %q", file)
	}

	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}

	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return Failed(err, "write %q", file)
	}

	return out.Print(map[string]string{"file": file}, []string{file}, func(w *bytes.Buffer) error {
		w.WriteString("wrote " + output.Printable(file) + "; edit it, then: " + next + "\n")
		return nil
	})
}
