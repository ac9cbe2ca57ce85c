package load_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// withoutEtcd is a package agent/cluster without the etcd client.
const withoutEtcd = `package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/volagent/volagent/volmgr/shared"
)

type Options struct {
	Endpoints     []string
	CA, Cert, Key string
	User          string
	Password      func() (string, error)
	Prefix        string
	Timeout       time.Duration
	Progress      time.Duration
	Log           hclog.Logger
	Tap           func(Point)
}

type Point struct {
	After bool
	Txn   shared.Txn
}

type Store struct{ shared.Store }

func (*Store) Endpoints() []string { return nil }

func (*Store) SetEndpoints([]string) error { return nil }

func Open(context.Context, Options) (*Store, error) { return nil, errors.New("there is no etcd client") }
`

// BenchmarkLoadProgramSize compares the size of volagent with that of a volagent without the etcd
// client. The second program is built from the same sources, with another package agent/cluster.
func BenchmarkLoadProgramSize(b *testing.B) {
	const most = 3 << 20
	dir := b.TempDir()
	gomod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		b.Fatal(err)
	}
	root := filepath.Dir(strings.TrimSpace(string(gomod)))
	stub, overlay := filepath.Join(dir, "stub.go"), filepath.Join(dir, "overlay.json")
	files, err := filepath.Glob(filepath.Join(root, "agent", "cluster", "*.go"))
	if err != nil {
		b.Fatal(err)
	}
	replace := map[string]string{}
	for _, f := range files {
		replace[f] = "" // the go command then does not see the file
	}
	replace[filepath.Join(root, "agent", "cluster", "cluster.go")] = stub
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		b.Fatal(err)
	}
	write(b, stub, withoutEtcd)
	write(b, overlay, string(raw))

	for range b.N {
		with, without := programSize(b, dir), programSize(b, dir, "-overlay", overlay)
		grown := with - without
		b.ReportMetric(float64(with), "bytes")
		counted(b, "size of volagent, the part of the etcd client", float64(grown), most, "%.2f of %.2f MiB, at most 3 MiB", mib(grown), mib(with))
	}
}

// programSize builds volagent as the package contains it, and returns its size in bytes.
func programSize(b *testing.B, dir string, flags ...string) int64 {
	b.Helper()
	program := filepath.Join(dir, "volagent")
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", program}, flags...)
	cmd := exec.Command("go", append(args, "github.com/volagent/volagent/cmd/volagent")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("cannot build: %v\n%s", err, out)
	}
	info, err := os.Stat(program)
	if err != nil {
		b.Fatal(err)
	}
	return info.Size()
}

func write(b *testing.B, path, text string) {
	b.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

// mib returns a number of bytes in MiB.
func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
