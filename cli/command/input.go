package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/spec"
	"github.com/volagent/volagent/cli/output"
)

// WaitFor runs read and returns its result. The function read takes no context, so WaitFor returns
// early when ctx ends. The call of read may then continue until the process ends.
func WaitFor[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}

	done := make(chan result, 1)
	go func() {
		v, err := read()
		done <- result{v, err}
	}()

	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}

// confirm asks the user a yes-or-no question on a terminal. Every answer except yes means no.
func (a *App) confirm(ctx context.Context, question string) (bool, error) {
	a.Complain("%s [y/N] ", output.Printable(question))
	answer, err := WaitFor(ctx, func() (string, error) {
		line, err := bufio.NewReader(a.Env.Stdin).ReadString('\n')
		if errors.Is(err, io.EOF) {
			a.Complain("\n")
			err = nil
		}
		return line, err
	})

	if err != nil {
		return false, fmt.Errorf("no answer: %w", err)
	}

	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}

	return false, nil
}

// ReadSpecs reads the volumes from a file, or from stdin if the file is "-".
func (a *App) ReadSpecs(ctx context.Context, file string) ([]api.VolumeSpec, error) {
	name, data, err := a.ReadFile(ctx, file)
	if err != nil {
		return nil, err
	}

	specs, err := spec.Parse(name, data)
	if err != nil {
		return nil, Failed(err, "read the volume file")
	}

	return specs, nil
}

// ReadFile reads a file, or stdin if the file is "-". The result name is for error messages.
// ReadFile reads at most one byte more than the maximum size, so that the parser can refuse a file
// that is too large.
func (a *App) ReadFile(ctx context.Context, file string) (name string, data []byte, err error) {
	name = file
	if file == "-" {
		name = "stdin"
	}

	data, err = WaitFor(ctx, func() ([]byte, error) {
		if file == "-" {
			return io.ReadAll(io.LimitReader(a.Env.Stdin, spec.MaxFileSize+1))
		}
		return readBounded(file)
	})

	if err != nil {
		return name, nil, FileError(file, err)
	}

	return name, data, nil
}

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	return io.ReadAll(io.LimitReader(f, spec.MaxFileSize+1))
}

// FileError returns a usage error for a file that cannot be read, because the file name comes from
// the command line. If the user may not read the file, FileError returns a permission error.
func FileError(file string, err error) error {
	var path *fs.PathError
	if !errors.As(err, &path) {
		return Failed(err, "read %q", file)
	}

	e := &api.Error{Code: api.CodeInvalid, Message: path.Err.Error()}
	if errors.Is(err, fs.ErrPermission) {
		e.Code = api.CodePermission
	}

	return Failed(e, "read %q", file)
}

// Asker asks the user to confirm an action. It is nil if volctl cannot ask or need not ask.
type Asker func(ctx context.Context, question string) (bool, error)

// Asker returns a function that asks the user. It returns nil if there is no terminal, or if yes is
// set, because -y is already the answer.
func (a *App) Asker(yes bool) Asker {
	if yes || !a.Env.StdinTerminal {
		return nil
	}
	return a.confirm
}

// NotConfirmed returns the error for an action that the user did not confirm. If the question
// itself failed, NotConfirmed returns err.
func NotConfirmed(err error) error {
	if err != nil {
		return err
	}
	return &api.Error{Code: api.CodeFailed, Message: "it was not confirmed; nothing was changed"}
}
