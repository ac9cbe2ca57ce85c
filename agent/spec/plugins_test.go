package spec_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/volagent/volagent/agent/spec"
)

// volumesIn returns the volume files that the comments of a plugin file contain.
func volumesIn(text string) (volumes []string) {
	shows := false // whether a comment has announced a volume file
	volume := ""
	for line := range strings.Lines(text) {
		indented, isIndented := strings.CutPrefix(line, "#   ")
		switch {
		case strings.HasPrefix(line, "# A volume"):
			shows = true
		case shows && isIndented:
			volume += indented
		case volume != "":
			volumes, volume, shows = append(volumes, volume), "", false
		}
	}
	return volumes
}

// TestPluginExamples checks that each example has a summary, an image with a tag, and volume files
// that Parse accepts. The tests of agent/pluginfile check that the agent accepts the plugin file.
func TestPluginExamples(t *testing.T) {
	names := spec.PluginExamples()
	for _, name := range []string{"nfs", "ebs", "s3", "cephfs", "rbd", "hostpath"} {
		if !slices.Contains(names, name) {
			t.Errorf("there is none of %q in %q", name, names)
		}
	}
	for _, name := range names {
		text, ok := spec.PluginExample(name)
		if !ok || spec.PluginSummary(name) == "" || !strings.HasPrefix(text, "# "+name+": ") || !strings.Contains(text, "\nid: "+name+"\n") {
			t.Errorf("%s begins with %.80q", name, text)
		}
		image := regexp.MustCompile(`(?m)^  image: (\S+:v?\d+\.\d+\.\d+)$`).FindStringSubmatch(text)
		if image == nil || !strings.Contains(text, "\n#   podman pull "+image[1]+"\n") {
			t.Errorf("%s: image %q, and no command that pulls it", name, image)
		}
		volumes := volumesIn(text)
		if len(volumes) == 0 {
			t.Errorf("%s shows no volume", name)
		}
		for _, v := range volumes {
			specs, err := spec.Parse(name, []byte(v))
			if err != nil || len(specs) != 1 || specs[0].PluginID != name || len(specs[0].Capabilities) == 0 {
				t.Errorf("%s shows a volume %+v, %v:\n%s", name, specs, err, v)
			}
		}
	}
	for _, name := range []string{"nfss", "../example", "example", "nfs.yaml"} {
		if _, ok := spec.PluginExample(name); ok {
			t.Errorf("there is an example of %q", name)
		}
	}
	if text, ok := spec.PluginExample(""); !ok || !strings.Contains(text, "\nid: mine\n") {
		t.Errorf("the general one is %q", text)
	}
}
