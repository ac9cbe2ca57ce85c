package pluginfile

import (
	"strings"
	"testing"
)

const valuesFile = `id: x
enabled: ENABLED
values:
  URL: VALUE
  DIR: /srv
container:
  runtime: podman
  image: registry/${URL}:1
  entrypoint: /bin/x
  args: ["--url=${URL}", "$${URL}", "${NODE_ID}"]
  env: {A: "a ${URL} ${DIR}", B: {file: /x}}
  mounts: ["${DIR}:/data:ro"]
`

// TestValues checks that the file's own variables are replaced, and that a missing one is an error
// only if the file is enabled.
func TestValues(t *testing.T) {
	file := func(enabled, value string) string {
		return strings.NewReplacer("ENABLED", enabled, "VALUE", value).Replace(valuesFile)
	}

	_, d, err := Parse("f.yaml", []byte(file("true", "u")))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(append(d.Container.Args, d.Container.Image, d.Container.Entrypoint, d.Container.Env["A"].Value, d.Container.Mounts[0]), "|")
	if want := "--url=u|$${URL}|${NODE_ID}|registry/u:1|/bin/x|a u /srv|/srv:/data:ro"; got != want || d.Disabled {
		t.Errorf("got %s, want %s, disabled %v", got, want, d.Disabled)
	}
	if Settings(d)["container.entrypoint"] != "/bin/x" {
		t.Errorf("the settings are %v", Settings(d))
	}
	other := *d
	otherContainer := *d.Container
	otherContainer.Entrypoint, other.Container = "", &otherContainer
	if d.Equal(&other) {
		t.Error("the entrypoint makes no difference")
	}

	if _, d, err := Parse("f.yaml", []byte(file("false", ""))); err != nil || !d.Disabled {
		t.Errorf("disabled: %+v, %v", d, err)
	}
	for text, words := range map[string]string{
		file("true", ""): "f.yaml:4: value URL is missing: set it, or set enabled: false",
		file("no", "u"):  `"enabled" is "no"; it can be true, false`,
		"id: x\nsocket: /s\nvalues: {NODE_ID: y}\n":                             "value NODE_ID has the name of a variable that the agent sets",
		"id: x\nsocket: /s\nvalues: {A-B: y}\n":                                 "is not 1 to 64 letters",
		"id: x\nsocket: /s\nvalues: {A: y, A: z}\n":                             "stands twice in values",
		"id: x\nsocket: /s\nvalues: [A]\n":                                      "values must have YAML keys",
		"id: x\nsocket: /s\nvalues: {A: [y]}\n":                                 `"A" is not a single value`,
		"id: x\nvalues: {A: '${'}\nexec: {command: [/x, '${A}']}\n":             "no closing brace",
		"id: x\ncontainer: {runtime: podman, image: i, entrypoint: ''}\n":       "the entrypoint is empty",
		"id: x\nenabled: false\nvalues: {A: }\nexec: {command: [/x, '${B}']}\n": "unknown variable ${B}",
	} {
		if _, _, err := Parse("f.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
