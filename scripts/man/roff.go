package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// section is the number of the manual section for administration commands (man(1)).
const section = "8"

// roff is a page in the roff markup of man(7).
type roff struct{ strings.Builder }

// escaped escapes a text for roff. It also escapes hyphens, so that they are still ASCII hyphens
// when a reader copies a command from the page.
func escaped(text string) string {
	return strings.NewReplacer(`\`, `\e`, `-`, `\-`, `"`, `\(dq`).Replace(text)
}

func (p *roff) line(raw string) { p.WriteString(raw + "\n") }

// macro writes a roff macro. The arguments may contain spaces.
func (p *roff) macro(name string, args ...string) {
	line := "." + name
	for _, a := range args {
		line += ` "` + escaped(a) + `"`
	}
	p.line(line)
}

// text writes one line of a paragraph. It escapes a dot or quote at the start of the line, which
// would begin a roff macro.
func (p *roff) text(s string) {
	s = escaped(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	p.line(s)
}

// prose writes a help text. It fills paragraphs, but keeps indented lines unchanged.
func (p *roff) prose(s string) {
	for para := range strings.SplitSeq(strings.TrimSpace(s), "\n\n") {
		lines := strings.Split(strings.Trim(para, "\n"), "\n")
		for len(lines) > 0 {
			n := slices.IndexFunc(lines, indented)
			switch {
			case n < 0:
				n = len(lines)

				fallthrough
			case n > 0:
				p.macro("PP")
				for _, line := range lines[:n] {
					p.text(line)
				}
			default:
				if n = slices.IndexFunc(lines, func(l string) bool { return !indented(l) }); n < 0 {
					n = len(lines)
				}
				p.verbatim(lines[:n])
			}
			lines = lines[n:]
		}
	}
}

func indented(line string) bool { return strings.HasPrefix(line, "  ") }

// verbatim writes lines unchanged, in a fixed-width font.
func (p *roff) verbatim(lines []string) {
	p.macro("PP")
	p.macro("RS", "4")
	p.macro("EX")

	for _, line := range lines {
		p.text(strings.TrimPrefix(line, "  "))
	}

	p.macro("EE")
	p.macro("RE")
}

// options describes the flags that are not hidden.
func (p *roff) options(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	p.macro("SH", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		head := `\fB` + escaped("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			head = `\fB` + escaped("-"+f.Shorthand) + `\fR, ` + head
		}
		if value != "" {
			head += ` \fI` + escaped(value) + `\fR`
		}
		if !slices.Contains([]string{"", "false", "[]", "0", "0s"}, f.DefValue) {
			usage += " (default " + f.DefValue + ")"
		}

		p.macro("TP")
		p.line(head)
		p.text(usage)
	})
}

// commands lists the subcommands of a command.
func (p *roff) commands(cmd *cobra.Command) {
	children := visible(cmd)[1:]
	if len(children) == 0 {
		return
	}

	p.macro("SH", "COMMANDS")
	for _, c := range children {
		if c.HasSubCommands() {
			continue
		}
		p.macro("TP")
		p.line(`\fB` + escaped(name(c)) + `\fR(` + section + `)`)
		p.text(c.Short)
	}
}

// shipped lists the files that appear in a program's page. The keys are program names.
var shipped = map[string][][2]string{
	"volagent": {
		{"/etc/volagent/volagent.yaml", "The configuration, with every key."},
		{"/etc/volagent/plugins.d/*.yaml", "One file for each plugin. The agent reads a file when it changes."},
		{"/etc/volagent/volumes.d", "Volumes that are registered when the agent starts."},
		{"/etc/volagent/classes.d/*.yaml", "Classes of volumes, one in each file."},
		{"/var/lib/volagent", "The state database, the mounts, and the volumes of the bundled driver."},
		{"/run/volagent/volagent.sock", "The socket of the API, which volctl uses."},
		{"/usr/share/doc/volagent", "Examples, and the licences of the code in the programs."},
	},
}

func (p *roff) files(cmd *cobra.Command) {
	list := shipped[name(cmd)]
	if len(list) == 0 {
		return
	}

	p.macro("SH", "FILES")
	for _, f := range list {
		p.macro("TP")
		p.line(`\fI` + escaped(f[0]) + `\fR`)
		p.text(f[1])
	}
}

// also lists related manual pages: the page of the parent command, and the pages of the other
// programs.
func (p *roff) also(cmd *cobra.Command) {
	pages := []string{"volagent", "volctl", "mount.csi"}
	if parent := cmd.Parent(); parent != nil && parent.HasParent() {
		pages = append([]string{name(parent)}, pages...)
	}

	pages = slices.DeleteFunc(pages, func(page string) bool { return page == name(cmd) })

	p.macro("SH", "SEE ALSO")
	for i, page := range pages {
		comma := ","
		if i == len(pages)-1 {
			comma = ""
		}
		p.line(`.BR ` + escaped(page) + ` (` + section + `)` + comma)
	}
}

// name returns the name of a command's manual page, such as volctl-volume-claim.
func name(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// visible returns a command and all its subcommands at any depth, except hidden commands.
func visible(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if !c.Hidden && c.Name() != "help" {
			all = append(all, visible(c)...)
		}
	}

	return all
}
