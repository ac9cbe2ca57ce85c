package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/volagent/volagent/cli/command"
	"github.com/volagent/volagent/cli/mount"
)

func testRoot() (*command.App, *cobra.Command) {
	a := command.NewApp(command.Env{Getenv: func(string) string { return "" }})
	return a, newRoot(a, mount.Host{})
}

func TestNormalise(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"volume deregister data -force", "volume deregister --force data"},
		{"volume list -output=json", "volume list --output=json"},
		{"volume list -output json", "volume list --output json"},
		{"volume list -o=json", "volume list -o=json"},
		{"volume list -ojson", "volume list -ojson"},
		{"volume claim data -alloc web", "volume claim --alloc web data"},
		{"volume claim data -alloc -force", "volume claim --alloc -force data"},
		{"volume claim data --alloc -read-only -read-only", "volume claim --alloc -read-only --read-only data"},
		{"volume claim data -alloc=-read-only", "volume claim --alloc=-read-only data"},
		{"volume claim data -o -alloc", "volume claim -o -alloc data"},
		{"volume claim data -qo -alloc", "volume claim -qo -alloc data"},
		{"volume claim -- -alloc", "volume claim -- -alloc"},
		{"volume detach data -all -- -force", "volume detach --all data -- -force"},
		{"-force volume deregister data", "volume deregister --force data"},
		{"-socket /x volume -json list", "volume list --socket /x --json"},
		{"-alloc list volume claim data", "volume claim --alloc list data"},
		{"plugin logs -fn 5 -follow p", "plugin logs -fn 5 --follow p"},
		{"plugin logs p -folow", "plugin logs p -folow"},
		{"volume deregister data -yq", "volume deregister data -yq"},
		{"volume status -", "volume status -"},
		{"volume -help", "volume --help"},
		{"-version", "--version"},
		{"help -help", "help --help"},
		{"nothing -force", "nothing -force"},
		{"volume claim data -unknown-flag", "volume claim data -unknown-flag"},
		{"volume claim data -alloc", "volume claim --alloc data"},
		{"", ""},
		{"__complete volume claim -a", "__complete volume claim -a"},
	} {
		_, root := testRoot()
		got := command.Normalise(root, strings.Fields(tt.in))
		// Normalise may move flags before the arguments, but must keep the order of the flags.
		if sorted(got) != sorted(strings.Fields(tt.want)) || flagsOf(got) != flagsOf(strings.Fields(tt.want)) {
			t.Errorf("%s\n got %s\nwant %s", tt.in, strings.Join(got, " "), tt.want)
		}
	}
}

func sorted(args []string) string {
	args = slices.Clone(args)
	slices.Sort(args)
	return strings.Join(args, " ")
}

func flagsOf(args []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(args), func(a string) bool { return len(a) < 2 || a[0] != '-' }), " ")
}

// flagsOfCommand returns all flags of a command, including inherited flags.
func flagsOfCommand(c *cobra.Command) *pflag.FlagSet {
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	c.LocalFlags()
	return c.Flags()
}

// TestEveryFlagWithOneDash checks that every long flag of every command also works with one dash.
// It tries each flag before and after the name of the command. It passes the value in the same
// argument and in the next argument.
func TestEveryFlagWithOneDash(t *testing.T) {
	_, tree := testRoot()
	tried := 0
	walk(tree, func(c *cobra.Command) {
		if c.DisableFlagParsing {
			return
		}
		words := strings.Fields(c.CommandPath())[1:]
		flagsOfCommand(c).VisitAll(func(f *pflag.Flag) {
			value := valueFor(f)
			forms := [][]string{{"-" + f.Name + "=" + value}, {"--" + f.Name + "=" + value}}
			if f.NoOptDefVal == "" {
				forms = append(forms, []string{"-" + f.Name, value}, []string{"--" + f.Name, value})
			} else {
				forms = append(forms, []string{"-" + f.Name}, []string{"--" + f.Name})
			}
			for _, form := range forms {
				for _, args := range [][]string{slices.Concat(words, form), slices.Concat(form, words)} {
					tried++
					want := value
					if f.NoOptDefVal != "" && !strings.Contains(strings.Join(form, ""), "=") {
						want = f.NoOptDefVal
					}
					if err := parses(args, c.CommandPath(), f.Name, want); err != nil {
						t.Errorf("volctl %s: %v", strings.Join(args, " "), err)
					}
				}
			}
		})
	})
	if tried < 500 {
		t.Errorf("only %d command lines were tried", tried)
	}
}

func valueFor(f *pflag.Flag) string {
	if f.Hidden && f.Name == "type" {
		return "csi" // a flag of Nomad, which takes only this value
	}
	switch f.Value.Type() {
	case "bool":
		return "true"
	case "int", "uint":
		return "7"
	case "duration":
		return "7s"
	case "string", "stringArray":
		return "-x" // the value starts with a dash, but is not a flag
	default:
		return "a value of a type without a test: " + f.Value.Type()
	}
}

// parses parses the arguments as Run does, but does not run the command.
func parses(args []string, path, flag, value string) error {
	_, root := testRoot()
	args = command.Normalise(root, args)
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.CommandPath() != path {
		return fmt.Errorf("found %q, %w", cmd.CommandPath(), err)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	f := cmd.Flags().Lookup(flag)
	if got := strings.Trim(f.Value.String(), "[]"); !f.Changed || got != value {
		return fmt.Errorf("--%s is %q, want %q", flag, got, value)
	}
	return nil
}

// TestFlagsMeanTheSameEverywhere checks that a flag takes a value either in every command or in no
// command. Normalise depends on this rule when it searches for the command.
func TestFlagsMeanTheSameEverywhere(t *testing.T) {
	_, root := testRoot()
	takes, letters := map[string]bool{}, map[string]string{}
	// These commands use a short flag with the meaning that it has in mount(8) or umount(8).
	others := map[string]string{"volctl mount": "o", "volctl umount": "f", "volctl systemd generate": "o"}
	walk(root, func(c *cobra.Command) {
		flagsOfCommand(c).VisitAll(func(f *pflag.Flag) {
			value := f.NoOptDefVal == ""
			if before, ok := takes[f.Name]; ok && before != value {
				t.Errorf("%s: --%s takes a value, and takes none elsewhere", c.CommandPath(), f.Name)
			}
			takes[f.Name] = value
			if f.Shorthand == "" {
				return
			}
			if before, ok := takes["-"+f.Shorthand]; ok && before != value {
				t.Errorf("%s: -%s takes a value, and takes none elsewhere", c.CommandPath(), f.Shorthand)
			}
			takes["-"+f.Shorthand] = value
			if others[c.CommandPath()] == f.Shorthand {
				return
			}
			if before, ok := letters[f.Shorthand]; ok && before != f.Name {
				t.Errorf("%s: -%s is --%s, and --%s elsewhere", c.CommandPath(), f.Shorthand, f.Name, before)
			}
			letters[f.Shorthand] = f.Name
		})
	})
	if len(takes) < 15 {
		t.Errorf("only %d flags were seen", len(takes))
	}
}

func TestCommandsAreComplete(t *testing.T) {
	_, root := testRoot()
	walk(root, func(c *cobra.Command) {
		if c.Short == "" && !c.Hidden {
			t.Errorf("%s has no description", c.CommandPath())
		}
		if c.Args == nil && !c.DisableFlagParsing {
			t.Errorf("%s does not check its arguments", c.CommandPath())
		}
		if c.RunE == nil {
			t.Errorf("%s does nothing", c.CommandPath())
		}
	})
}

// TestDashedIDs checks that every command accepts an id that begins with "-", if the id comes after
// "--". volctl itself suggests commands of this form.
func TestDashedIDs(t *testing.T) {
	tried := 0
	_, root := testRoot()
	walk(root, func(c *cobra.Command) {
		if !c.Runnable() || c.HasSubCommands() || c.DisableFlagParsing || c.Args == nil || c.Args(c, []string{"-x"}) != nil && c.Args(c, []string{"-x", "-x"}) != nil {
			return
		}
		_, fresh := testRoot()
		words := strings.Fields(c.CommandPath())[1:]
		args := command.Normalise(fresh, append(slices.Clone(words), "-q", "--", "-x", "-force"))
		cmd, rest, err := fresh.Find(args)
		if err != nil || cmd.CommandPath() != c.CommandPath() {
			t.Errorf("%v: %v, %v", args, cmd.CommandPath(), err)
			return
		}
		if err := cmd.ParseFlags(rest); err != nil || !slices.Equal(cmd.Flags().Args(), []string{"-x", "-force"}) {
			t.Errorf("%v: %q, %v", args, cmd.Flags().Args(), err)
		}
		tried++
	})
	if tried < 20 {
		t.Errorf("only %d commands were tried", tried)
	}
}
