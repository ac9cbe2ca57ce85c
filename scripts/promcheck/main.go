// Command promcheck checks the alert rules and the dashboard in packaging/. Every expression must
// parse with the parser of Prometheus. Every metric, label and command in the files must exist in
// docs/metrics.md or docs/cli.md. The command is in a module of its own, so that the agent's module
// does not depend on the Prometheus server.
//
//	promcheck ROOT
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "promcheck:", err)
		os.Exit(1)
	}
}

// run checks the rules and the dashboard in the repository at the given path.
func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: promcheck ROOT")
	}

	read := func(path ...string) []byte {
		text, err := os.ReadFile(filepath.Join(append(args, path...)...))
		if err != nil {
			fmt.Fprintln(os.Stderr, "promcheck:", err)
		}
		return text // after an error, the checks reject the empty text
	}

	c, err := newCatalog(read("docs", "metrics.md"), read("docs", "cli.md"))
	if err != nil {
		return err
	}

	alerts, err := c.rules(read("packaging", "prometheus", "volagent.rules.yaml"))
	if err != nil {
		return fmt.Errorf("packaging/prometheus/volagent.rules.yaml: %w", err)
	}

	panels, err := c.dashboard(read("packaging", "grafana", "volagent.json"))
	if err != nil {
		return fmt.Errorf("packaging/grafana/volagent.json: %w", err)
	}

	_, err = fmt.Fprintf(out, "promcheck: %d alerts and %d panels are correct\n", alerts, panels)
	return err
}
