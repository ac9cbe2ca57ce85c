package api

// Results of a check.
const (
	CheckOK          = "ok"
	CheckWorksAround = "works-around" // the plugin deviates, and the agent copes
	CheckBroken      = "broken"       // the agent cannot work safely with it
	CheckSkipped     = "skipped"      // not tried; Said says why
)

// PluginTest asks for a test of a plugin in a scratch volume, which is created, or
// is the one that ExternalID and Context name.
type PluginTest struct {
	ExternalID   string            `json:"external_id,omitempty"`
	Context      map[string]string `json:"context,omitempty"`
	Secrets      map[string]Secret `json:"secrets,omitempty"`
	Parameters   map[string]string `json:"parameters,omitempty"`
	Capacity     int64             `json:"capacity,omitempty"`    // bytes; 0 leaves it to the plugin
	AccessMode   string            `json:"access_mode,omitempty"` // empty: the one that allows most
	MountOptions *MountOptions     `json:"mount_options,omitempty"`
	// Kill lets the plugin's process be killed.
	Kill bool `json:"kill,omitempty"`
	// Forget gives up what an earlier test left and cannot be undone.
	Forget  bool   `json:"forget,omitempty"`
	Timeout string `json:"timeout,omitempty"` // of the whole test, as in 10m
}

// PluginCheck is how one check went.
type PluginCheck struct {
	Check  string  `json:"check"`
	Result string  `json:"result"`
	TookMS float64 `json:"took_ms"`
	Said   string  `json:"said"`
}

// PluginTestSummary is what a whole test found.
type PluginTestSummary struct {
	Driver  string `json:"driver"`
	Version string `json:"version"`
	NodeID  string `json:"node_id,omitempty"`
	// Mounts is "kernel" or "fuse"; empty if nothing was mounted.
	Mounts      string `json:"mounts,omitempty"`
	FSType      string `json:"fs_type,omitempty"` // the kernel's name of the file system
	Attaches    bool   `json:"attaches"`
	Stages      bool   `json:"stages"`
	StageMounts bool   `json:"stage_mounts"`
	Creates     bool   `json:"creates"`

	OK         int `json:"ok"`
	WorkAround int `json:"works_around"`
	Broken     int `json:"broken"`
	Skipped    int `json:"skipped"`
}

// PluginTestLine is one line of the answer: a check, or at the end the summary or
// why there is none.
type PluginTestLine struct {
	Check   *PluginCheck       `json:"check,omitempty"`
	Summary *PluginTestSummary `json:"summary,omitempty"`
	Error   *Error             `json:"error,omitempty"`
}
