// Command prose counts phrases that make comments, messages and pages hard to read. It fails if the
// number of such phrases has risen. The rules are in rules.go.
//
//	prose ROOT              compare the clone at ROOT with its baseline
//	prose -update ROOT      record new counts; fail if the total is higher
//	prose -list DIR ROOT    print every finding in DIR, for example "cli" or "docs"
//	prose -rates ROOT       print how often each rule is broken
//	prose -subject TEXT     check the subject of a commit
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

// baselineFile is the path of the file with the recorded counts, relative to the root of the
// repository.
const baselineFile = "scripts/prose/baseline.txt"

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("prose", flag.ContinueOnError)
	update := flags.Bool("update", false, "record lower counts in "+baselineFile)
	list := flags.String("list", "", "print every finding in this `DIR`")
	rates := flags.Bool("rates", false, "print how often each rule is broken")
	subject := flags.String("subject", "", "check this commit `SUBJECT` and nothing else")
	if err := flags.Parse(args); err != nil {
		return err
	}

	if *subject != "" {
		return checkSubject(*subject)
	}
	if flags.NArg() != 1 {
		return errors.New("usage: prose [-update | -list DIR | -rates] ROOT")
	}

	root := flags.Arg(0)
	texts, err := readTree(root)
	if err != nil {
		return err
	}
	findings := check(texts)

	switch {
	case *list != "":
		return printFindings(out, findings, *list)
	case *rates:
		return printRates(out, texts, findings)
	}
	return ratchet(filepath.Join(root, baselineFile), count(texts, findings), findings, *update, out)
}
