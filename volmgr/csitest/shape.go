package csitest

// shape describes a method and the fields that its request requires. The plugin has only the
// methods that have a shape.
type shape struct {
	mutates bool

	// These are the fields that the CSI spec calls REQUIRED.
	name, volume, node, staging, target, capability, snapshot, group bool

	// offered reports whether a plugin with the given Config has the method. The plugin answers all
	// other methods with Unimplemented.
	offered func(Config) bool

	// asks is set if callers use the method to find out whether the service exists.
	asks bool
}

func always(Config) bool          { return true }
func hasController(c Config) bool { return !c.NoController }
func hasNode(c Config) bool       { return !c.NoNode }
func creates(c Config) bool       { return hasController(c) && c.CreateDelete }
func attaches(c Config) bool      { return hasController(c) && c.Attach }
func stages(c Config) bool        { return hasNode(c) && c.Stage }
func counts(c Config) bool        { return hasNode(c) && c.Stats }
func lists(c Config) bool         { return hasController(c) && c.Lists }

// controls returns a function for the field offered of a controller method. The method is offered
// if flag returns true.
func controls(flag func(Config) bool) func(Config) bool {
	return func(c Config) bool { return hasController(c) && flag(c) }
}

// serves returns a function for the field offered of a node method. The method is offered if flag
// returns true.
func serves(flag func(Config) bool) func(Config) bool {
	return func(c Config) bool { return hasNode(c) && flag(c) }
}

func groups(c Config) bool { return hasController(c) && c.GroupSnapshot }

// shapes maps each method that the plugin knows to its shape.
var shapes = map[string]shape{
	pluginInfo:           {offered: always},
	pluginCapabilities:   {offered: always},
	Probe:                {offered: always},
	controllerAbilities:  {offered: hasController, asks: true},
	nodeAbilities:        {offered: hasNode, asks: true},
	NodeInfo:             {offered: hasNode, asks: true},
	CreateVolume:         {offered: creates, mutates: true, name: true, capability: true},
	DeleteVolume:         {offered: creates, mutates: true, volume: true},
	ControllerPublish:    {offered: attaches, mutates: true, volume: true, node: true, capability: true},
	ControllerUnpublish:  {offered: attaches, mutates: true, volume: true},
	ValidateCapabilities: {offered: hasController, volume: true, capability: true},
	NodeStage:            {offered: stages, mutates: true, volume: true, staging: true, capability: true},
	NodeUnstage:          {offered: stages, mutates: true, volume: true, staging: true},
	NodePublish:          {offered: hasNode, mutates: true, volume: true, target: true, capability: true},
	NodeUnpublish:        {offered: hasNode, mutates: true, volume: true, target: true},
	NodeStats:            {offered: counts, volume: true, target: true},
	ListVolumes:          {offered: lists},
	GetCapacity:          {offered: lists},
	ControllerExpand:     {offered: controls(func(c Config) bool { return c.Expand }), mutates: true, volume: true},
	ControllerModify:     {offered: controls(func(c Config) bool { return c.Modify }), mutates: true, volume: true},
	ControllerGetVolume:  {offered: controls(func(c Config) bool { return c.Get }), volume: true},
	NodeExpand:           {offered: serves(func(c Config) bool { return c.NodeExpand }), mutates: true, volume: true, target: true},
	CreateSnapshot:       {offered: controls(func(c Config) bool { return c.Snapshot }), mutates: true, name: true, volume: true},
	DeleteSnapshot:       {offered: controls(func(c Config) bool { return c.Snapshot }), mutates: true, snapshot: true},
	ListSnapshots:        {offered: controls(func(c Config) bool { return c.ListSnapshots })},
	GetSnapshot:          {offered: controls(func(c Config) bool { return c.GetSnapshot }), snapshot: true},
	groupAbilities:       {offered: groups},
	CreateGroupSnapshot:  {offered: groups, mutates: true, name: true},
	DeleteGroupSnapshot:  {offered: groups, mutates: true, group: true},
	GetGroupSnapshot:     {offered: groups, group: true},
	ControllerHealth:     {offered: controls(func(c Config) bool { return c.Health }), volume: true},
	ListHealth:           {offered: controls(func(c Config) bool { return c.ListHealth })},
	NodeHealth:           {offered: serves(func(c Config) bool { return c.NodeHealth }), volume: true},
	NodeStorageHealth:    {offered: serves(func(c Config) bool { return c.StorageHealth })},
}

// Mutates reports whether a method changes something. All other methods only ask for information.
func Mutates(method string) bool { return shapes[method].mutates }
