package recipe

import (
	"fmt"
	"strings"
)

// width is the maximum length of a line of a comment.
const width = 118

// comments returns the comment at the top of a plugin file.
func (r *Recipe) comments(in Input) string {
	var b block
	b.line("%s: %s", r.Name, r.Title)
	b.line("")
	b.paragraph(r.provenance())
	if r.Notes != "" {
		b.line("")
		b.paragraphs(r.Notes)
	}

	if needs := r.Host.list(); len(needs) > 0 {
		b.line("")
		b.line("This host needs:")
		for _, n := range needs {
			b.item(n)
		}
	}

	if r.Image != "" {
		b.line("")
		b.line("The image:")
		b.line("  %s pull %s", in.Runtime, r.Image)
	}

	r.settings(&b, in)
	for i := range r.Volumes {
		v := &r.Volumes[i]
		b.line("")
		b.line("%s", v.heading())
		for line := range strings.Lines(r.volumeText(v, in.SecretDir)) {
			b.line("  %s", strings.TrimSuffix(line, "\n"))
		}
	}

	return b.String()
}

// provenance says where the recipe comes from.
func (r *Recipe) provenance() string {
	words := fmt.Sprintf("Flags, mounts and parameters are those of %s in version %s.", r.Source.Repository, r.Source.Version)
	if !r.Ran {
		words += " This recipe was written from the driver's source, and the driver was not run with it."
	}
	return words + " Test it with: volctl plugin test " + r.Name
}

// settings lists the values and secrets of the recipe.
func (r *Recipe) settings(b *block, in Input) {
	if len(r.Values) > 0 {
		b.line("")
		b.line("Values, which --set NAME=VALUE of volctl plugin init fills in:")
		for _, v := range r.Values {
			b.item(v.describe())
		}
	}

	if len(r.Secrets) == 0 {
		return
	}
	b.line("")
	b.line("Secrets, one value in each file, which --set-secret NAME=FILE of volctl plugin init stores:")
	for _, s := range r.Secrets {
		words := s.describe()
		if s.Volume || r.readsFile(s.Name) {
			words += "; in " + r.secretPath(in.SecretDir, s.Name)
		}
		b.item(words)
	}
	for _, c := range r.Configs {
		b.item("the configuration of the driver is in " + r.secretPath(in.SecretDir, c.Name))
	}
}

func (v *Value) describe() string {
	words := v.Name + ": " + v.Note
	switch {
	case v.Required:
		words += " (required)"
	case v.Default != "":
		words += " (" + v.Default + ")"
	}
	return words
}

func (s *Secret) describe() string {
	words := s.Name + ": " + s.Note
	switch {
	case s.Volume:
		words += " (for volumes)"
	case s.Required:
		words += " (required)"
	}
	return words
}

// list returns the requirements, a sentence or phrase each.
func (h *Host) list() []string {
	var out []string
	add := func(what string, names []string) {
		if len(names) > 0 {
			out = append(out, what+" "+strings.Join(names, ", "))
		}
	}
	add("kernel modules:", h.Modules)
	add("programs:", h.Programs)
	add("services that run:", h.Services)
	add("device nodes:", h.Devices)
	if h.SharedMounts {
		out = append(out, "shared mounts, as under systemd, because the driver mounts for the host from a container")
	}
	if len(h.Directories) > 0 {
		out = append(out, "these directories: "+strings.Join(h.Directories, " "))
	}
	return append(out, h.Other...)
}

// fence returns the key fence with its reason.
func (r *Recipe) fence() string {
	var b block
	b.paragraph(r.Fence.Why + " Source:")
	b.line("  %s", r.Fence.Source)
	return b.String() + "fence: " + r.Fence.Value + "\n"
}

// block is a comment.
type block struct{ strings.Builder }

func (b *block) line(format string, args ...any) {
	b.WriteString(strings.TrimRight("# "+fmt.Sprintf(format, args...), " ") + "\n")
}

// item writes an item of a list.
func (b *block) item(text string) { b.wrap("  - ", "    ", text) }

// paragraph writes a text, and breaks its lines.
func (b *block) paragraph(text string) { b.wrap("", "", text) }

// paragraphs writes paragraphs that empty lines separate. It keeps the lines of an indented paragraph.
func (b *block) paragraphs(text string) {
	for i, p := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			b.line("")
		}
		if !strings.HasPrefix(p, "  ") {
			b.paragraph(p)
			continue
		}
		for line := range strings.Lines(p) {
			b.line("%s", strings.TrimSuffix(line, "\n"))
		}
	}
}

func (b *block) wrap(first, next, text string) {
	line := first
	for i, word := range strings.Fields(text) {
		if i > 0 && len(line)+1+len(word) > width {
			b.line("%s", line)
			line = next + word
			continue
		}
		if i > 0 {
			line += " "
		}
		line += word
	}
	b.line("%s", line)
}
