// Package cluster_test tests clusters of hosts with the built binaries.
package cluster_test

import (
	"testing"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
