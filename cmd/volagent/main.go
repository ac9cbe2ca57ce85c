// Command volagent is the agent that serves CSI volumes to a host without an orchestrator. It runs
// once on each host.
package main

import (
	"os"

	"github.com/volagent/volagent/agent"
)

func main() {
	os.Exit(agent.Main(os.Args[1:], os.Stdout, os.Stderr, agent.Seams{}))
}
