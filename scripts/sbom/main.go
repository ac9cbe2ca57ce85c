// Command sbom writes a CycloneDX document that describes the contents of the built programs. The
// document lists this project's module, the Go standard library, and every linked module with its
// version and checksum. The data comes from the built programs, so the document describes exactly
// the code that is shipped.
//
// The document has neither a serial number nor a creation time, so the same programs always produce
// the same document.
package main

import (
	"cmp"
	"debug/buildinfo"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: sbom VERSION UNIX-TIME PROGRAM...")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, version, unixTime string, programs []string) error {
	var seconds int64
	if _, err := fmt.Sscan(unixTime, &seconds); err != nil {
		return fmt.Errorf("cannot read the time %q: %w", unixTime, err)
	}

	parts, err := modules(programs)
	if err != nil {
		return err
	}

	const product = "github.com/volagent/volagent"
	bom := cdx.NewBOM()

	bom.Metadata = &cdx.Metadata{
		Timestamp: time.Unix(seconds, 0).UTC().Format(time.RFC3339),
		Component: &cdx.Component{
			BOMRef: product, Type: cdx.ComponentTypeApplication, Name: "volagent", Version: version,
			PackageURL: "pkg:golang/" + product + "@" + version,
		},
	}

	var components []cdx.Component
	var needs []string
	for _, m := range parts {
		url := "pkg:golang/" + m.Path + "@" + m.Version
		c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: url}
		if m.Sum != "" {
			c.Properties = &[]cdx.Property{{Name: "go:sum", Value: m.Sum}}
		}
		components, needs = append(components, c), append(needs, url)
	}

	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: product, Dependencies: &needs}}

	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// modules returns the modules that are linked into the programs, sorted by path and without
// duplicates.
func modules(programs []string) ([]debug.Module, error) {
	all := map[string]debug.Module{}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, fmt.Errorf("cannot read the build information of %s: %w", program, err)
		}

		all["std"] = debug.Module{Path: "std", Version: info.GoVersion}
		for _, m := range info.Deps {
			for m.Replace != nil {
				m = m.Replace
			}
			all[m.Path] = *m
		}
	}

	return slices.SortedFunc(maps.Values(all), func(a, b debug.Module) int { return cmp.Compare(a.Path, b.Path) }), nil
}
