package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
)

// dashboard is a Grafana dashboard. It has only the fields that the project's dashboard uses.
type dashboard struct {
	Title         string          `json:"title"`
	UID           string          `json:"uid"`
	Description   string          `json:"description"`
	Tags          []string        `json:"tags"`
	SchemaVersion int             `json:"schemaVersion"`
	Version       int             `json:"version"`
	Editable      bool            `json:"editable"`
	GraphTooltip  int             `json:"graphTooltip"`
	Timezone      string          `json:"timezone"`
	Refresh       string          `json:"refresh"`
	Time          json.RawMessage `json:"time"`
	Templating    struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Annotations json.RawMessage `json:"annotations"`
	Links       []any           `json:"links"`
	Panels      []panel         `json:"panels"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type variable struct {
	Name       string          `json:"name"`
	Label      string          `json:"label"`
	Type       string          `json:"type"`
	Query      string          `json:"query"`
	Definition string          `json:"definition"`
	Datasource *source         `json:"datasource"`
	Current    json.RawMessage `json:"current"`
	Refresh    int             `json:"refresh"`
	Sort       int             `json:"sort"`
	Multi      bool            `json:"multi"`
	IncludeAll bool            `json:"includeAll"`
	AllValue   string          `json:"allValue"`
}

type panel struct {
	ID          int     `json:"id"`
	Type        string  `json:"type"`
	Title       string  `json:"title"`
	Description string  `json:"description"`
	Datasource  *source `json:"datasource"`
	Collapsed   bool    `json:"collapsed"`
	Panels      []panel `json:"panels"`
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults  map[string]any `json:"defaults"`
		Overrides []any          `json:"overrides"`
	} `json:"fieldConfig"`
	Options         map[string]any `json:"options"`
	Transformations []any          `json:"transformations"`
	Targets         []target       `json:"targets"`
}

type target struct {
	RefID        string  `json:"refId"`
	Expr         string  `json:"expr"`
	LegendFormat string  `json:"legendFormat"`
	Format       string  `json:"format"`
	Instant      bool    `json:"instant"`
	Range        bool    `json:"range"`
	Datasource   *source `json:"datasource"`
}

var (
	varName     = regexp.MustCompile(`\$\{?(\w+)\}?`)
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	legend      = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// builtin maps the variables that Grafana defines to sample values.
var builtin = map[string]string{"__rate_interval": "5m", "__range": "1h"}

// columns is the width of a dashboard. oldest is the schema version of Grafana 10, which is the
// oldest supported version.
const (
	columns = 24
	oldest  = 38
)

// dashboard checks a dashboard and returns the number of panels.
func (c *catalog) dashboard(text []byte) (n int, err error) {
	var d dashboard

	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return 0, err
	}

	complain := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }

	if d.Title == "" || d.UID == "" || d.SchemaVersion < oldest || len(d.Panels) == 0 {
		complain("title %q, uid %q, schemaVersion %d (at least %d), %d panels", d.Title, d.UID, d.SchemaVersion, oldest, len(d.Panels))
	}

	vars := maps.Clone(builtin)
	for _, v := range d.Templating.List {
		if bad := c.variable(v, vars); bad != nil {
			complain("variable %q: %w", v.Name, bad)
		}
		vars[v.Name] = ".+"
	}

	ids, titles := map[int]bool{}, set{}
	for i, p := range d.Panels {
		if p.ID <= 0 || ids[p.ID] || p.Title == "" || titles[p.Title] {
			complain("panel %d %q has no id, or no title, of its own", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true

		for _, q := range d.Panels[:i] {
			if g, h := p.GridPos, q.GridPos; g.X < h.X+h.W && h.X < g.X+g.W && g.Y < h.Y+h.H && h.Y < g.Y+g.H {
				complain("panels %q and %q overlap", q.Title, p.Title)
			}
		}

		if bad := c.panel(p, vars); bad != nil {
			complain("panel %q: %w", p.Title, bad)
		}
	}

	return len(d.Panels), err
}

// variable checks a variable of the dashboard. The map vars contains all variables before it.
func (c *catalog) variable(v variable, vars map[string]string) error {
	switch {
	case v.Name == "" || vars[v.Name] != "":
		return errors.New("it has no name of its own")
	case v.Type == "datasource" && v.Query == "prometheus":
		return nil
	case v.Type != "query":
		return fmt.Errorf("its type is %q", v.Type)
	case v.Datasource == nil || *v.Datasource != source{"prometheus", "${datasource}"}:
		return errors.New("it has another datasource than ${datasource}")
	}

	m := labelValues.FindStringSubmatch(v.Query)
	if m == nil {
		return fmt.Errorf("its query %q is not label_values(SELECTOR, LABEL)", v.Query)
	}

	text, err := substitute(m[1], vars)
	if err != nil {
		return err
	}

	labels, err := c.expr(text)
	if err != nil {
		return err
	}

	return has(labels, []string{m[2]})
}

func (c *catalog) panel(p panel, vars map[string]string) error {
	if g := p.GridPos; g.W <= 0 || g.H <= 0 || g.X < 0 || g.Y < 0 || g.X+g.W > columns {
		return fmt.Errorf("it does not lie in the %d columns: %+v", columns, g)
	}

	if p.Type == "row" {
		return nil
	}

	if p.Datasource == nil || *p.Datasource != (source{"prometheus", "${datasource}"}) {
		return errors.New("it has another datasource than ${datasource}")
	}

	if p.Description == "" || p.FieldConfig.Defaults["unit"] == nil || len(p.Targets) == 0 {
		return errors.New("it has no description, no unit or no targets")
	}

	refs := set{}
	for _, t := range p.Targets {
		if t.RefID == "" || refs[t.RefID] {
			return fmt.Errorf("refId %q is not there once", t.RefID)
		}
		refs[t.RefID] = true

		text, err := substitute(t.Expr, vars)
		if err != nil {
			return err
		}

		labels, err := c.expr(text)
		if err != nil {
			return err
		}

		for _, m := range legend.FindAllStringSubmatch(t.LegendFormat, -1) {
			if err := has(labels, []string{m[1]}); err != nil {
				return fmt.Errorf("legend %q: %w", t.LegendFormat, err)
			}
		}

		if !strings.Contains(t.Expr, `instance=~"$host"`) {
			return fmt.Errorf("%q does not keep to the chosen hosts", t.Expr)
		}
	}

	return nil
}

// substitute replaces the variables in a text with their sample values.
func substitute(text string, vars map[string]string) (string, error) {
	var err error
	out := varName.ReplaceAllStringFunc(text, func(v string) string {
		value, ok := vars[strings.Trim(v, "${}")]
		if !ok {
			err = fmt.Errorf("there is no variable %s", v)
		}
		return value
	})

	return out, err
}
