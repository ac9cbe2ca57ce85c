package memory_test

import (
	"testing"

	"github.com/volagent/volagent/agent/cluster/memory"
	"github.com/volagent/volagent/agent/cluster/storetest"
	"github.com/volagent/volagent/volmgr/shared"
)

func TestStore(t *testing.T) {
	server := memory.New()
	storetest.Run(t, storetest.Backend{
		Open:    func(_ *testing.T, prefix string) shared.Store { return server.Open(prefix) },
		Compact: server.Compact,
		Pass:    server.Advance,
	})
}
