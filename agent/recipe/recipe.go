// Package recipe contains a recipe for each known CSI driver: the plugin file, the values and secrets
// that it needs, the requirements on the host, and matching volumes. It renders plugin files and volume
// files from the recipes. It does not access the host.
//
//	recipe.go       the types of a recipe
//	drivers.go      reads the embedded recipes, and finds them by name
//	check.go        checks the values and secrets that a user gives
//	render.go       renders a plugin file and its configuration files
//	lines.go        replaces the variables in the lines of a template
//	comments.go     renders the comments of a plugin file
//	volume.go       renders volume files
//	drivers/*.yaml  the recipes, and the drivers that have none
package recipe

// Recipe describes how the agent runs one driver.
type Recipe struct {
	Name  string `yaml:"name"`  // the id of the plugin; the argument of volctl plugin init
	Group string `yaml:"group"` // one of the names in Groups
	Title string `yaml:"title"` // the kind of volume, in a few words

	Source Source `yaml:"source"`

	// Ran is set if the project has run the driver with this recipe. Without it, the recipe was only
	// written from the driver's source, and its plugin file says so.
	Ran bool `yaml:"ran"`

	// Notes are paragraphs for the person who runs the driver, without comment characters.
	Notes string `yaml:"notes"`
	Host  Host   `yaml:"host"`

	Image   string   `yaml:"image"` // empty for a driver that runs without a container
	Values  []Value  `yaml:"values"`
	Secrets []Secret `yaml:"secrets"`
	Configs []Config `yaml:"configs"`
	Volumes []Volume `yaml:"volumes"`
	Fence   Fence    `yaml:"fence"`

	// Plugin is the template of the plugin file, without its comments at the top.
	Plugin string `yaml:"plugin"`
}

// Source says which source of a driver was read for its recipe.
type Source struct {
	Repository string   `yaml:"repository"`
	Version    string   `yaml:"version"` // a tag of the repository, or a commit
	Read       []string `yaml:"read"`    // the most important files
}

// Host lists the requirements of a driver on the host.
type Host struct {
	Modules      []string `yaml:"modules"`       // kernel modules
	Programs     []string `yaml:"programs"`      // programs of the host that the driver runs
	Services     []string `yaml:"services"`      // services of the host that must run
	Directories  []string `yaml:"directories"`   // directories that must exist, because the container mounts them
	Devices      []string `yaml:"devices"`       // device nodes
	SharedMounts bool     `yaml:"shared_mounts"` // the driver mounts for the host, from its own mount namespace
	Other        []string `yaml:"other"`         // other requirements, a sentence each
}

// Value is a setting that is not secret.
type Value struct {
	Name     string   `yaml:"name"`
	Note     string   `yaml:"note"`
	Required bool     `yaml:"required"`
	Default  string   `yaml:"default"`
	Example  string   `yaml:"example"`
	Choices  []string `yaml:"choices"` // if it is not empty, the value is one of these
	Number   bool     `yaml:"number"`  // the value is a whole number
}

// Secret is a value that only the agent and the driver may know.
type Secret struct {
	Name     string `yaml:"name"`
	Note     string `yaml:"note"`
	Required bool   `yaml:"required"`

	// Document is set for a secret of several lines, such as a key file. It may contain newlines, and
	// lines of the form NAME=VALUE.
	Document bool `yaml:"document"`

	// Volume is set for a secret that volume files name. The plugin file does not contain it.
	Volume bool `yaml:"volume"`
}

// Config is a configuration file of a driver. It is written beside the secrets, because it can contain
// secrets.
type Config struct {
	Name   string `yaml:"name"`
	Format string `yaml:"format"` // how values are quoted: FormatYAML, FormatJSON or FormatINI
	Text   string `yaml:"text"`
}

// These are the formats of configuration files.
const (
	FormatYAML = "yaml"
	FormatJSON = "json"
	FormatINI  = "ini"
)

// Volume is an example of a volume.
type Volume struct {
	ID           string            `yaml:"id"`
	Title        string            `yaml:"title"`       // completes "A volume, …"
	ExternalID   string            `yaml:"external_id"` // set for a volume that exists, for volctl volume register
	Capacity     string            `yaml:"capacity"`
	Modes        []string          `yaml:"modes"`       // access modes
	Attachment   string            `yaml:"attachment"`  // attachment mode; file-system if it is empty
	FSType       string            `yaml:"fs_type"`     // file system type
	MountFlags   []string          `yaml:"mount_flags"` // mount flags
	Topology     map[string]string `yaml:"topology"`    // required topology
	Parameters   []Parameter       `yaml:"parameters"`  // for CreateVolume
	Context      []Parameter       `yaml:"context"`     // for a volume that exists
	Secrets      []VolumeSecret    `yaml:"secrets"`     // by the key that the driver reads
	RegisterNote string            `yaml:"register_note"`
}

// Parameter is a parameter of a volume.
type Parameter struct {
	Key      string `yaml:"key"`
	Value    string `yaml:"value"`
	Note     string `yaml:"note"`
	Optional bool   `yaml:"optional"` // shown in a comment
}

// VolumeSecret binds the key that a driver reads to a secret of the recipe.
type VolumeSecret struct {
	Key      string `yaml:"key"`
	Secret   string `yaml:"secret"`
	Note     string `yaml:"note"`
	Optional bool   `yaml:"optional"`
}

// Fence is the proof that a lost host no longer writes, if the maker of the driver documents one.
type Fence struct {
	Value  string `yaml:"value"` // a value of the key fence; empty for none
	Why    string `yaml:"why"`
	Source string `yaml:"source"` // the address of the maker's document
}

// Unsupported is a driver that has no recipe.
type Unsupported struct {
	Name         string   `yaml:"name"`
	Title        string   `yaml:"title"`
	Reason       string   `yaml:"reason"`
	Source       Source   `yaml:"source"`
	Alternatives []string `yaml:"alternatives"` // a sentence each
}

// Group is a group of recipes in lists.
type Group struct{ Name, Title string }

// Groups returns the groups in the order in which lists show them.
func Groups() []Group {
	return []Group{
		{"cloud", "Disks and file systems of clouds"},
		{"storage", "Storage systems and servers"},
		{"object", "Object storage, mounted as a file system"},
		{"host", "Storage of this host"},
	}
}

// secret returns the secret with the given name.
func (r *Recipe) secret(name string) (Secret, bool) {
	for _, s := range r.Secrets {
		if s.Name == name {
			return s, true
		}
	}
	return Secret{}, false
}

// value returns the value with the given name.
func (r *Recipe) value(name string) (Value, bool) {
	for _, v := range r.Values {
		if v.Name == name {
			return v, true
		}
	}
	return Value{}, false
}
