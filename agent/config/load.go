package config

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/volagent/volagent/volmgr/volume"
)

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

// AddFlags adds the flags of the configuration to a flag set.
func AddFlags(fl *pflag.FlagSet) {
	fl.String("config", "", "configuration file (default "+DefaultFile+", if it exists)")
	for _, s := range settings {
		if s.flag {
			fl.String(flagName(s.key), "", withDefault(s.usage, s.value))
		}
	}
}

func withDefault(usage, value string) string {
	if value == "" {
		return usage
	}
	return usage + " (default " + value + ")"
}

// Load reads the configuration from the flags, the environment and the file. The error for a
// mistake names the file, the line and the key.
func Load(fl *pflag.FlagSet) (Config, error) {
	v := viper.New()
	v.SetEnvPrefix("volagent")
	v.AutomaticEnv()
	file, mistake := readFile(fl)

	for _, s := range settings {
		v.SetDefault(s.key, s.value)
		if f := fl.Lookup(flagName(s.key)); s.flag && f.Changed {
			v.Set(s.key, f.Value.String())
			delete(file.lines, s.key)
		} else if os.Getenv("VOLAGENT_"+strings.ToUpper(s.key)) != "" {
			delete(file.lines, s.key)
		}
	}

	if err := v.MergeConfigMap(file.values); err != nil {
		return Config{}, volume.Errorf(volume.ErrInvalid, "cannot read the configuration: %v", err)
	}

	var c Config
	if err := v.Unmarshal(&c); err != nil {
		return Config{}, volume.Errorf(volume.ErrInvalid, "cannot read the configuration: %v", err)
	}

	c.Socket = cmp.Or(c.Socket, filepath.Join(c.RuntimeDir, "volagent.sock"))
	cluster, err := file.loadCluster()
	c.Cluster = cluster
	if mistake == nil {
		mistake = err
	}
	if mistake == nil {
		mistake = c.check(file)
	}

	return c, mistake
}

// readFile reads the configuration file without viper. viper would ignore misspelled keys, and
// would convert a node id such as 0123 to a number.
func readFile(fl *pflag.FlagSet) (configFile, error) {
	path := DefaultFile
	if f := fl.Lookup("config"); f.Changed {
		path = f.Value.String()
	} else if env := os.Getenv("VOLAGENT_CONFIG"); env != "" {
		path = env
	}

	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == DefaultFile {
		return configFile{path: path}, nil
	}
	if err != nil {
		return configFile{path: path}, volume.Errorf(volume.ErrInvalid, "cannot read the configuration: %v", err)
	}

	return parse(path, raw)
}
