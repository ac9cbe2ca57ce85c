package main

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// set is a set of names, such as labels or commands.
type set map[string]bool

func of(names ...string) set {
	s := set{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

func (s set) String() string { return strings.Join(slices.Sorted(maps.Keys(s)), " ") }

// metric describes a metric of the agent as Prometheus stores it.
type metric struct {
	kind string // "counter" or "gauge"; a histogram becomes three counters

	labels set
}

// catalog contains the metrics and commands that may occur in rules and dashboards.
type catalog struct {
	metrics  map[string]metric
	commands set
	parser   parser.Parser
}

var (
	metricRow = regexp.MustCompile("(?m)^\\| `(volagent_\\w+)` \\| (\\w+) \\| ([^|]*)\\|")
	heading   = regexp.MustCompile(`(?m)^## (volctl .+)$`)
)

// newCatalog reads the table in docs/metrics.md and the headings in docs/cli.md. The table is
// correct, because a test in agent/metrics compares it with the code. The headings are correct,
// because docs/cli.md is generated from the commands.
func newCatalog(metricsPage, cliPage []byte) (*catalog, error) {
	c := &catalog{metrics: map[string]metric{}, commands: set{}, parser: parser.NewParser(parser.Options{})}
	for _, row := range metricRow.FindAllSubmatch(metricsPage, -1) {
		all := of("instance", "job") // labels that Prometheus adds for the scrape target
		for _, l := range strings.Fields(strings.ReplaceAll(string(row[3]), "`", "")) {
			if l == "instance" {
				// If a label of the agent has the same name as a target label, Prometheus renames
				// it.
				l = "exported_instance"
			}
			all[l] = true
		}

		name, kind := string(row[1]), string(row[2])
		if kind != "histogram" {
			c.metrics[name] = metric{kind, all}
			continue
		}

		bucket := maps.Clone(all)
		bucket["le"] = true
		c.metrics[name+"_bucket"] = metric{"counter", bucket}
		c.metrics[name+"_sum"], c.metrics[name+"_count"] = metric{"counter", all}, metric{"counter", all}
	}

	for _, h := range heading.FindAllSubmatch(cliPage, -1) {
		c.commands[string(h[1])] = true
	}

	if len(c.metrics) == 0 || len(c.commands) == 0 {
		return nil, errors.New("docs/metrics.md has no table of metrics, or docs/cli.md no commands")
	}

	c.metrics["up"] = metric{"gauge", of("instance", "job")} // a metric of Prometheus itself
	return c, nil
}

// expr parses an expression and returns the labels of its result.
func (c *catalog) expr(text string) (set, error) {
	e, err := c.parser.ParseExpr(text)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}

	got, err := c.yields(e)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	return got, nil
}

// overCounters lists the functions that are only useful for counters.
var overCounters = of("rate", "irate", "increase", "resets")

// yields returns the labels of an expression's result. It returns an error if the expression
// contains an unknown metric or label.
func (c *catalog) yields(e parser.Expr) (set, error) {
	switch e := e.(type) {
	case *parser.VectorSelector:
		return c.selector(e)
	case *parser.MatrixSelector:
		return c.yields(e.VectorSelector)
	case *parser.ParenExpr:
		return c.yields(e.Expr)
	case *parser.UnaryExpr:
		return c.yields(e.Expr)
	case *parser.SubqueryExpr:
		return c.yields(e.Expr)
	case *parser.AggregateExpr:
		return c.aggregate(e)
	case *parser.BinaryExpr:
		return c.binary(e)
	case *parser.Call:
		return c.call(e)
	case *parser.NumberLiteral, *parser.StringLiteral:
		return set{}, nil
	default:
		return nil, fmt.Errorf("%T is more than this check knows", e)
	}
}

func (c *catalog) selector(v *parser.VectorSelector) (set, error) {
	m, ok := c.metrics[v.Name]
	if !ok {
		return nil, fmt.Errorf("there is no metric %q", v.Name)
	}

	for _, match := range v.LabelMatchers {
		if match.Name != labels.MetricName && !m.labels[match.Name] {
			return nil, fmt.Errorf("%s has no label %q", v.Name, match.Name)
		}
	}
	return m.labels, nil
}

func (c *catalog) aggregate(e *parser.AggregateExpr) (set, error) {
	inner, err := c.yields(e.Expr)
	if err != nil {
		return nil, err
	}

	if err := has(inner, e.Grouping); err != nil {
		return nil, err
	}

	switch {
	case e.Op == parser.TOPK || e.Op == parser.BOTTOMK:
		return inner, nil
	case e.Without:
		return less(inner, e.Grouping), nil
	default:
		return of(e.Grouping...), nil
	}
}

func (c *catalog) binary(e *parser.BinaryExpr) (set, error) {
	left, err := c.yields(e.LHS)
	if err != nil {
		return nil, err
	}

	right, err := c.yields(e.RHS)
	if err != nil {
		return nil, err
	}

	switch m := e.VectorMatching; {
	case m == nil && e.LHS.Type() == parser.ValueTypeScalar:
		return right, nil
	case m == nil:
		return left, nil
	default:
		if err := matched(left, right, m); err != nil {
			return nil, err
		}

		switch {
		case e.Op.IsSetOperator() || m.Card != parser.CardOneToOne:
			return left, nil
		case m.On:
			return of(m.MatchingLabels...), nil
		case !maps.Equal(less(left, m.MatchingLabels), less(right, m.MatchingLabels)):
			return nil, fmt.Errorf("the sides do not match: %q and %q", left, right)
		default:
			return less(left, m.MatchingLabels), nil
		}
	}
}

// matched checks the labels in on() and ignoring(). It returns an error if one operand lacks a
// label in on(), or if both operands lack a label in ignoring().
func matched(left, right set, m *parser.VectorMatching) error {
	if m.On {
		return errors.Join(has(left, m.MatchingLabels), has(right, m.MatchingLabels))
	}

	for _, l := range m.MatchingLabels {
		if err := has(left, []string{l}); err != nil && !right[l] {
			return err
		}
	}
	return nil
}

func (c *catalog) call(e *parser.Call) (got set, err error) {
	got = set{}
	for _, arg := range e.Args {
		l, err := c.yields(arg)
		if err != nil {
			return nil, err
		}
		if m, ok := arg.(*parser.MatrixSelector); ok && overCounters[e.Func.Name] {
			if name := m.VectorSelector.(*parser.VectorSelector).Name; c.metrics[name].kind != "counter" {
				return nil, fmt.Errorf("%s of %s, which is no counter", e.Func.Name, name)
			}
		}
		if arg.Type() == parser.ValueTypeVector || arg.Type() == parser.ValueTypeMatrix {
			got = l
		}
	}

	if e.Func.Name == "histogram_quantile" {
		if err := has(got, []string{"le"}); err != nil {
			return nil, err
		}
		got = less(got, []string{"le"})
	}

	return got, nil
}

func has(all set, names []string) error {
	for _, n := range names {
		if !all[n] {
			return fmt.Errorf("there is no label %q there, only %q", n, all)
		}
	}
	return nil
}

func less(all set, names []string) set {
	rest := maps.Clone(all)
	for _, n := range names {
		delete(rest, n)
	}
	return rest
}
