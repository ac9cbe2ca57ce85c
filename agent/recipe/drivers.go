package recipe

import (
	"bytes"
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
)

//go:embed drivers/*.yaml
var files embed.FS

// unsupportedFile lists the drivers that have no recipe.
const unsupportedFile = "unsupported.yaml"

// book contains all recipes.
type book struct {
	recipes     []Recipe
	unsupported []Unsupported
}

// read reads the embedded recipes once. They are part of the program, and a test reads them all, so a
// mistake in them is a mistake in the program.
var read = sync.OnceValue(func() book {
	b, err := parseAll()
	if err != nil {
		panic(err)
	}
	return b
})

func parseAll() (book, error) {
	var b book
	entries, err := files.ReadDir("drivers")
	if err != nil {
		return b, err
	}

	for _, e := range entries {
		raw, err := files.ReadFile("drivers/" + e.Name())
		if err != nil {
			return b, err
		}

		dec := yaml.NewDecoder(bytes.NewReader(raw))
		dec.KnownFields(true)
		if e.Name() == unsupportedFile {
			err = dec.Decode(&b.unsupported)
		} else {
			var r Recipe
			err = dec.Decode(&r)
			b.recipes = append(b.recipes, r)
		}
		if err != nil {
			return b, fmt.Errorf("recipe %s: %w", e.Name(), err)
		}
	}

	slices.SortFunc(b.recipes, func(x, y Recipe) int { return strings.Compare(x.Name, y.Name) })
	return b, nil
}

// All returns all recipes, sorted by name. Callers must not change them.
func All() []Recipe { return read().recipes }

// Names returns the names of all recipes, sorted.
func Names() []string {
	var names []string
	for _, r := range All() {
		names = append(names, r.Name)
	}
	return names
}

// Find returns the recipe with the given name.
func Find(name string) (*Recipe, bool) {
	all := All()
	for i := range all {
		if all[i].Name == name {
			return &all[i], true
		}
	}
	return nil, false
}

// AllUnsupported returns the drivers that have no recipe.
func AllUnsupported() []Unsupported { return read().unsupported }

// FindUnsupported returns the reason why a known driver has no recipe.
func FindUnsupported(name string) (*Unsupported, bool) {
	all := AllUnsupported()
	for i := range all {
		if all[i].Name == name {
			return &all[i], true
		}
	}
	return nil, false
}
