// Package csitest is a CSI plugin for tests. It makes real mounts and writes every call to a
// journal, in order. It checks that its caller keeps the rules of the CSI spec, and fails on
// command. Only tests import it. It imports nothing of the project, because a checker must not
// share code with the caller that it checks.
//
// In process:
//
//	p := csitest.New(csitest.Config{Base: dir, Stage: true, AnyVolume: true})
//	err := p.Start("unix://" + socket)
//	defer p.Close()
//
// As a child process, started by the test or by an agent: TestMain calls Main if the process was
// started as a plugin.
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
// A Fault says which calls fail and how: late, without the effect, without the answer, with a
// crash, or with a Twist, which imitates the behavior of real plugins:
//
//	Fault{Method: csitest.NodeStage, Skip: 1, Twist: csitest.Dead}
//
// The journal also stores the caller's knowledge, so a restarted plugin continues its checks.
// Volumes and attachments are files, and the kernel keeps the mounts. Nothing is kept in memory
// alone.
package csitest
