package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// finding is a sentence that breaks a rule.
type finding struct {
	text     text
	rule     *rule
	times    int
	sentence string
}

// check applies all rules to all texts.
func check(texts []text) []finding {
	var all []finding
	for _, t := range texts {
		for _, s := range sentences(t.words) {
			for i := range rules {
				if n := rules[i].breaks(s); n > 0 {
					all = append(all, finding{t, &rules[i], n, s})
				}
			}
		}
	}
	return all
}

// counts maps each directory to its number of findings.
type counts map[string]int

func (c counts) total() int {
	sum := 0
	for _, n := range c {
		sum += n
	}
	return sum
}

// count returns the number of findings in each directory. It includes directories with texts but
// without findings.
func count(texts []text, findings []finding) counts {
	c := counts{}
	for _, t := range texts {
		c[filepath.Dir(t.file)] += 0
	}
	for _, f := range findings {
		c[filepath.Dir(f.text.file)] += f.times
	}
	return c
}

// ratchet compares the counts with the baseline file. A higher count is an error. A lower count is
// also an error, because the count could later rise again without notice. If update is set, ratchet
// writes the new counts to the file, unless the total has risen. Findings can therefore move to
// another directory together with their code.
func ratchet(file string, now counts, findings []finding, update bool, out io.Writer) error {
	was, err := readBaseline(file)
	first := errors.Is(err, fs.ErrNotExist)
	if err != nil && !first {
		return err
	}

	if update {
		if !first && now.total() > was.total() {
			return fmt.Errorf("the total rose from %d to %d; rewrite the new sentences (prose -list DIR .)", was.total(), now.total())
		}
		_, err = fmt.Fprintf(out, "prose: %d findings recorded, %d before\n", now.total(), was.total())
		return errors.Join(err, writeBaseline(file, now))
	}

	var higher, lower []string
	for _, dir := range slices.Sorted(maps.Keys(now)) {
		switch {
		case now[dir] > was[dir]:
			higher = append(higher, dir)
		case now[dir] < was[dir]:
			lower = append(lower, dir)
		}
	}
	for dir := range was {
		if _, ok := now[dir]; !ok {
			lower = append(lower, dir)
		}
	}

	for _, dir := range higher {
		if err := printFindings(out, findings, dir); err != nil {
			return err
		}
	}
	if len(higher) > 0 {
		var changes []string
		for _, dir := range higher {
			changes = append(changes, fmt.Sprintf("%s from %d to %d", dir, was[dir], now[dir]))
		}
		return fmt.Errorf("more findings than recorded: %s; rewrite the new sentences, or record moved code with `go run ./scripts/prose -update .`", strings.Join(changes, ", "))
	}
	if len(lower) > 0 {
		return fmt.Errorf("fewer findings than recorded in %s; record that with `go run ./scripts/prose -update .`", strings.Join(lower, ", "))
	}
	_, err = fmt.Fprintf(out, "prose: %d findings, as recorded\n", now.total())
	return err
}

// readBaseline reads a baseline file. Each line contains a count and a directory.
func readBaseline(file string) (counts, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // a file opened for reading has no data to lose

	c := counts{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		number, dir, ok := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		n, err := strconv.Atoi(number)
		if err != nil || !ok {
			return nil, fmt.Errorf("%s: %q is not a count and a directory", file, lines.Text())
		}
		c[dir] = n
	}
	return c, lines.Err()
}

func writeBaseline(file string, c counts) error {
	var b strings.Builder
	for _, dir := range slices.Sorted(maps.Keys(c)) {
		if c[dir] > 0 {
			fmt.Fprintf(&b, "%4d %s\n", c[dir], dir)
		}
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// printFindings prints the findings of one directory.
func printFindings(out io.Writer, findings []finding, dir string) error {
	var errs []error
	for _, f := range findings {
		if filepath.Dir(f.text.file) == filepath.Clean(dir) {
			_, err := fmt.Fprintf(out, "%s:%d: %s: %s\n    %s\n", f.text.file, f.text.line, f.rule.name, f.rule.advice, f.sentence)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// printRates prints how often comments, messages and pages break each rule. For comments, it also
// prints the number of findings per thousand lines.
func printRates(out io.Writer, texts []text, findings []finding) error {
	lines := 0
	for _, t := range texts {
		lines += t.lines
	}
	number := map[string]*[3]int{}
	for _, f := range findings {
		if number[f.rule.name] == nil {
			number[f.rule.name] = new([3]int)
		}
		number[f.rule.name][f.text.kind] += f.times
	}

	_, err := fmt.Fprintf(out, "%d comment lines\n%-14s %8s %8s %8s %12s\n", lines, "rule", "comments", "messages", "pages", "per 1000 lines")
	for i := range rules {
		n := number[rules[i].name]
		if n == nil {
			n = new([3]int)
		}
		_, printed := fmt.Fprintf(out, "%-14s %8d %8d %8d %12.1f\n", rules[i].name, n[comment], n[message], n[page], float64(n[comment])*1000/float64(max(lines, 1)))
		err = errors.Join(err, printed)
	}
	return err
}
