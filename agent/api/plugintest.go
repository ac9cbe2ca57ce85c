package api

// The results of a check.
const (
	CheckOK          = "ok"
	CheckWorksAround = "works-around" // the plugin deviates from CSI, but the agent can work with it
	CheckBroken      = "broken"       // the agent cannot work safely with the plugin
	CheckSkipped     = "skipped"      // the check did not run; Said contains the reason
)

// PluginTest asks for a test of a plugin with a scratch volume. The agent creates that volume,
// unless ExternalID and Context name an existing one.
type PluginTest struct {
	ExternalID   string            `json:"external_id,omitempty"`
	Context      map[string]string `json:"context,omitempty"`
	Secrets      map[string]Secret `json:"secrets,omitempty"`
	Parameters   map[string]string `json:"parameters,omitempty"`
	Capacity     int64             `json:"capacity,omitempty"`    // in bytes; 0 means that the plugin chooses
	AccessMode   string            `json:"access_mode,omitempty"` // empty means the most permissive mode
	MountOptions *MountOptions     `json:"mount_options,omitempty"`

	// Kill permits the test to kill the plugin's process.
	Kill bool `json:"kill,omitempty"`

	// Fence permits the test to detach its volume while this host writes to it. The test must create
	// that volume itself.
	Fence bool `json:"fence,omitempty"`

	// Forget makes the agent forget those leftovers of an earlier test that it cannot remove.
	Forget  bool   `json:"forget,omitempty"`
	Timeout string `json:"timeout,omitempty"` // the time limit for the whole test, such as 10m
}

// PluginCheck is the result of one check.
type PluginCheck struct {
	Check  string  `json:"check"`
	Result string  `json:"result"`
	TookMS float64 `json:"took_ms"`
	Said   string  `json:"said"`
}

// PluginTestSummary is the result of the whole test.
type PluginTestSummary struct {
	Driver  string `json:"driver"`
	Version string `json:"version"`
	NodeID  string `json:"node_id,omitempty"`

	// Mounts is "kernel" or "fuse". It is empty if the test mounted nothing.
	Mounts      string `json:"mounts,omitempty"`
	FSType      string `json:"fs_type,omitempty"` // the kernel's name for the file system
	Attaches    bool   `json:"attaches"`
	Stages      bool   `json:"stages"`
	StageMounts bool   `json:"stage_mounts"`
	Creates     bool   `json:"creates"`

	OK         int `json:"ok"`
	WorkAround int `json:"works_around"`
	Broken     int `json:"broken"`
	Skipped    int `json:"skipped"`
}

// PluginTestLine is one line of the answer. Each line contains the result of one check, except for
// the last line, which contains the summary or an error.
type PluginTestLine struct {
	Check   *PluginCheck       `json:"check,omitempty"`
	Summary *PluginTestSummary `json:"summary,omitempty"`
	Error   *Error             `json:"error,omitempty"`
}
