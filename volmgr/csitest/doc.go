// Package csitest is a CSI plugin for tests. It makes real mounts and writes every call to a journal,
// in order. It checks that its caller obeys the rules of the CSI spec, and can simulate failures. Only
// tests import it. It imports no other package of the project, because a checker must not share code
// with the caller that it checks.
//
// A test can run the plugin in its own process:
//
//	p := csitest.New(csitest.Config{Base: dir, Stage: true, AnyVolume: true})
//	err := p.Start("unix://" + socket)
//	defer p.Close()
//
// A test or an agent can also run it as a child process. TestMain calls Main if the process was
// started as a plugin:
//
//	func TestMain(m *testing.M) {
//		if csitest.IsChild() {
//			os.Exit(csitest.Main())
//		}
//		os.Exit(m.Run())
//	}
//
// Config.Environment returns the environment that the child needs in addition to CSI_ENDPOINT.
// Config.PluginFile returns a plugin file of volagent with that environment.
//
// All data is in Config.Base, which must be outside the root of the caller's volume mounts:
//
//	journal.jsonl      every call and violation, appended (see Journal)
//	control.json       the faults (see Control)
//	late/              effects that happen after the plugin's death (see Fault.Outlives)
//	volumes/<hash>/    one volume: volume.json, attached.json, data/, block.img
//
// A Fault selects calls and makes them fail with a delay, without the effect, without the answer, or
// with a crash. A Fault with a Twist imitates the behavior of a real plugin:
//
//	Fault{Method: csitest.NodeStage, Skip: 1, Twist: csitest.Dead}
//
// A restarted plugin reads the knowledge of its caller from the journal, and continues its checks.
// Volumes and attachments are files, and the kernel keeps the mounts. The plugin keeps no data only in
// memory.
package csitest
