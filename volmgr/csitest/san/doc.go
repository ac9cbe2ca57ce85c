// Package san simulates a storage area network for tests with several hosts on one machine. It
// judges a cluster by the writes and calls that reach the storage, and not by the records of the
// agents. It imports no other package of the project. Only tests import it.
//
// One process runs the SAN and owns all disks. Each host runs a driver process, which is a CSI
// plugin. A host is a mount namespace. The driver mounts a FUSE file system in the namespace of its
// host, and sends the FUSE device to the SAN. The SAN then serves this session:
//
//	host A                  SAN process                        host B
//	agent                     disks, attachments               agent
//	  │ CSI                   journal, judge                     │ CSI
//	driver ── san.sock ──▶  ┌─────────────────┐  ◀── san.sock ── driver
//	mount ◀─ /dev/fuse ───▶ │session   session│ ◀─── /dev/fuse ─▶ mount
//	                        └───────┬─────────┘
//	                             one disk
//
// An attachment is the connection of one volume to one node. Every operation of a session passes
// the gate of its attachment. The SAN closes the gate when the attachment ends or the node is cut
// off. A closed gate answers EIO, and waits for the operations that have already passed. When the
// gate is closed, no data of the node reaches the disk any more. A driver that has ended or is
// stopped does not change this.
//
// A driver with Config.Attach makes attachments with ControllerPublishVolume. All other drivers make
// an attachment when they mount the volume, and end it when they unmount the volume.
//
// A test runs the SAN in its own process. It must not use the files of a volume in this process,
// because a process must not use files that it serves itself. It runs commands in the hosts instead:
//
//	s, err := san.Start(dir)
//	defer s.Close()
//	file, err := s.Driver("node-a", san.Config{Attach: true, Stage: true}).PluginFile("san", binary)
//
// TestMain calls Main if the process was started as a driver or as a SAN:
//
//	func TestMain(m *testing.M) {
//		if san.IsChild() {
//			os.Exit(san.Main())
//		}
//		os.Exit(m.Run())
//	}
//
// The journal is the file journal.jsonl in the directory of the SAN. See Event and Violation.
package san
