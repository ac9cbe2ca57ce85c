// Command man writes a manual page for each command of the programs. It generates the pages from
// the help texts of the commands. Usage: go run ./scripts/man DIR
package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/volagent/volagent/agent"
	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd"
	"github.com/volagent/volagent/cli"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: man DIR")
	}

	date, err := buildDate(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}

	for _, root := range []*cobra.Command{agent.Command(io.Discard), etcd.Command(), cli.Command()} {
		for _, cmd := range visible(root) {
			path := filepath.Join(args[0], name(cmd)+"."+section)
			if err := os.WriteFile(path, []byte(page(cmd, date)), 0o644); err != nil {
				return err
			}
		}
	}

	return nil
}

// buildDate returns the date in the footer of each page. If SOURCE_DATE_EPOCH is set, buildDate
// uses it as the date, so that the same source always produces the same pages.
func buildDate(epoch string) (string, error) {
	at := time.Now()
	if epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return "", fmt.Errorf("SOURCE_DATE_EPOCH=%q is not a number of seconds", epoch)
		}
		at = time.Unix(seconds, 0)
	}

	return at.UTC().Format(time.DateOnly), nil
}

// manual is the title in the center of each page's header.
const manual = "CSI volumes"

func page(cmd *cobra.Command, date string) string {
	p := &roff{}
	p.macro("TH", strings.ToUpper(name(cmd)), section, date, "volagent "+api.Version, manual)

	p.macro("SH", "NAME")
	// whatis(1) reads this line: the name, a dash, and a short description.
	p.line(name(cmd) + ` \- `)
	p.text(strings.ToLower(cmd.Short[:1]) + cmd.Short[1:])

	p.macro("SH", "SYNOPSIS")
	synopsis := strings.ReplaceAll(cmd.UseLine(), " [flags]", "")
	if cmd.HasParent() && cmd.HasSubCommands() || !cmd.Runnable() {
		synopsis += " COMMAND"
	}
	p.macro("B", synopsis)

	p.macro("SH", "DESCRIPTION")
	long := cmd.Long
	long = cmp.Or(long, cmd.Short+".")
	p.prose(long)

	p.options("OPTIONS", cmd.NonInheritedFlags())
	p.options("OPTIONS OF ALL COMMANDS", cmd.InheritedFlags())
	p.commands(cmd)
	if cmd.Example != "" {
		p.macro("SH", "EXAMPLES")
		p.verbatim(strings.Split(strings.Trim(cmd.Example, "\n"), "\n"))
	}

	p.files(cmd)
	p.also(cmd)

	return p.String()
}
