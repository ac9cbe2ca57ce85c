package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/wire"
	"github.com/volagent/volagent/cli/command"
)

// programName is the program that carries out the commands. It contains etcd, which volctl does not.
const programName = "volagent-etcd"

// program finds volagent-etcd beside volctl, or in PATH.
func program() (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), programName)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath(programName)
	if err != nil {
		return "", &api.Error{Code: api.CodeNotFound, Message: "the program volagent-etcd is not installed", Hint: "install the package volagent on this host"}
	}
	return path, nil
}

// call sends a request to volagent-etcd and decodes the result. The request is not an argument of the
// process, because it may contain a secret.
func call[T any](ctx context.Context, a *command.App, r wire.Request) (result T, err error) {
	path, err := program()
	if err != nil {
		return result, err
	}
	request, err := json.Marshal(r)
	if err != nil {
		return result, err
	}

	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "control")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &out, a.Env.Stderr
	// An interrupt lets the program clean up before it ends.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	runErr := cmd.Run()
	if ctx.Err() != nil {
		return result, ctx.Err()
	}

	var resp wire.Response
	if err := json.Unmarshal(out.Bytes(), &resp); err != nil {
		return result, errors.Join(errors.New("volagent-etcd has not answered"), runErr)
	}
	if resp.Error != nil {
		return result, resp.Error
	}
	return result, json.Unmarshal(resp.Result, &result)
}
