// Command promcheck reads the alert rules and the dashboard of packaging/ with Prometheus' own
// parser, and compares them with docs/metrics.md and docs/cli.md. Every expression must parse.
// Every metric, every label and every command in a description must exist. promcheck is a module of
// its own, so that the agent's module does not depend on Prometheus' server.
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

// run checks the files below the root of a clone.
func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: promcheck ROOT")
	}

	read := func(path ...string) []byte {
		text, err := os.ReadFile(filepath.Join(append(args, path...)...))
		if err != nil {
			fmt.Fprintln(os.Stderr, "promcheck:", err)
		}
		return text // the checks reject empty text
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

	_, err = fmt.Fprintf(out, "promcheck: %d alerts and %d panels are well\n", alerts, panels)
	return err
}
