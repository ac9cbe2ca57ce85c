// Package csitest is a CSI plugin for tests. It really mounts, writes down every
// call in order, checks that its caller keeps the rules of the CSI spec, and
// misbehaves on command. Only tests import it, and it imports nothing of the
// project: who checks the caller must not share the caller's code.
//
// In process:
//
//	p := csitest.New(csitest.Config{Base: dir, Stage: true, AnyVolume: true})
//	err := p.Start("unix://" + socket)
//	defer p.Close()
//
// As a child process, started by the test or by an agent: TestMain hands over
// when it finds itself started as a plugin.
//
//	func TestMain(m *testing.M) {
//		if csitest.IsChild() {
//			os.Exit(csitest.Main())
//		}
//		os.Exit(m.Run())
//	}
//
// Config.Environment is what the child needs beside CSI_ENDPOINT, and
// Config.PluginFile is a plugin file of volagent that says so.
//
// All that is remembered lies in Config.Base, which must be outside the mount
// root of the caller:
//
//	journal.jsonl      every call and violation, appended (see Journal)
//	control.json       faults to come (see Control)
//	late/              effects that come after the plugin's death (see Fault.Outlives)
//	volumes/<hash>/    one volume: volume.json, attached.json, data/, block.img
//
// A Fault says which calls go wrong and how: late, without the effect, without
// the answer, with a crash, or with a Twist, which is a habit of real plugins:
//
//	Fault{Method: csitest.NodeStage, Skip: 1, Twist: csitest.Dead}
//
// The journal is also the memory of what the caller was told, so a plugin that
// was killed goes on checking where it stopped. Volumes and attachments are
// files, mounts are the kernel's: nothing is kept in memory alone.
package csitest
