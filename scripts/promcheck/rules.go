package main

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// ruleFile is a Prometheus rule file. It has only the fields that the project's rules use.
type ruleFile struct {
	Groups []struct {
		Name     string `yaml:"name"`
		Interval string `yaml:"interval"`
		Rules    []rule `yaml:"rules"`
	} `yaml:"groups"`
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

var severities = []string{"critical", "warning", "info"}

// rules checks a rule file and returns the number of alerts.
func (c *catalog) rules(text []byte) (n int, err error) {
	var f ruleFile
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)

	if err := dec.Decode(&f); err != nil {
		return 0, err
	}

	seen := set{}
	for _, g := range f.Groups {
		if g.Name == "" || seen["group "+g.Name] {
			err = errors.Join(err, fmt.Errorf("group %q has no name of its own", g.Name))
		}

		seen["group "+g.Name] = true

		if g.Interval != "" {
			_, bad := model.ParseDuration(g.Interval)
			err = errors.Join(err, bad)
		}

		for _, r := range g.Rules {
			if seen[r.Alert] {
				err = errors.Join(err, fmt.Errorf("alert %s is defined twice", r.Alert))
			}

			seen[r.Alert] = true
			if bad := c.alert(r); bad != nil {
				err = errors.Join(err, fmt.Errorf("alert %q: %w", r.Alert, bad))
			}

			n++
		}
	}

	if n == 0 {
		err = errors.Join(err, errors.New("there are no alerts"))
	}

	return n, err
}

func (c *catalog) alert(r rule) error {
	if !regexp.MustCompile(`^Volagent[A-Z]\w+$`).MatchString(r.Alert) {
		return errors.New("its name is not VolagentSomething")
	}

	labels, err := c.expr(r.Expr)
	if err != nil {
		return err
	}

	if _, err := model.ParseDuration(r.For); err != nil {
		return fmt.Errorf("for: %w", err)
	}

	if len(r.Labels) != 1 || !slices.Contains(severities, r.Labels["severity"]) {
		return fmt.Errorf("its labels are %v, and not a severity of %v", r.Labels, severities)
	}

	if len(r.Annotations) != 2 || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
		return errors.New("its annotations are not a summary and a description")
	}

	for name, text := range r.Annotations {
		if err := words(text, labels); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}

	return c.command(r.Annotations["description"])
}

// templateFuncs contains the template functions of Prometheus that the rules use.
var templateFuncs = template.FuncMap{"humanizePercentage": fmt.Sprint, "humanizeTimestamp": fmt.Sprint, "humanize": fmt.Sprint}

// words checks that a template is valid and uses only labels of the alert.
func words(text string, all set) error {
	t, err := template.New("").Funcs(templateFuncs).Parse("{{$labels := .}}{{$value := .}}" + text)
	if err != nil {
		return err
	}

	for _, n := range t.Root.Nodes {
		action, ok := n.(*parse.ActionNode)
		if !ok {
			continue
		}

		for _, cmd := range action.Pipe.Cmds {
			for _, arg := range cmd.Args {
				if v, ok := arg.(*parse.VariableNode); ok && v.Ident[0] == "$labels" && len(v.Ident) > 1 && !all[v.Ident[1]] {
					return fmt.Errorf("the alert has no label %q, only %q", v.Ident[1], all)
				}
			}
		}
	}

	return nil
}

var quoted = regexp.MustCompile("`([^`]+)`")

// command checks that a description contains a command in quotes. Every volctl command in the
// description must exist.
func (c *catalog) command(text string) error {
	found := quoted.FindAllStringSubmatch(text, -1)
	if len(found) == 0 {
		return errors.New("its description has no `command`")
	}

	for _, m := range found {
		if !strings.HasPrefix(m[1], "volctl ") {
			continue
		}

		known := false
		for cmd := range c.commands {
			known = known || m[1] == cmd || strings.HasPrefix(m[1], cmd+" ")
		}
		if !known {
			return fmt.Errorf("there is no command %q", m[1])
		}
	}

	return nil
}
