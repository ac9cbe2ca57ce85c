// Package localdriver is the bundled CSI driver, "builtin: local". It runs as a process of its own
// and is reached only through its CSI socket, so it imports nothing else of this module.
//
// It offers two types of volume, chosen by the create parameter "type":
//
//   - "directory" is a directory of this host, bind-mounted where it is wanted. The capacity asked
//     for is recorded and reported; it is not enforced. The mutable parameter "quota" is, where the
//     filesystem below has project quotas. It works without root, in a user namespace with its own
//     mount namespace.
//   - "image" is a sparse file behind a loop device. It holds an ext4 (the default), xfs or btrfs
//     filesystem, named by the capability's fs_type or by the parameter "fs_type", or it is a raw
//     block device when only block access is asked for. Its size is real. It needs root.
//
// Without a type, a volume with a size is one that cannot outgrow it: a directory with a quota, or
// an image where there are no quotas (defaulttype.go). One without a size is a directory.
//
// A filesystem is made once, when the volume is created, on a file nobody can see yet. Staging
// never formats anything, so no accident of detection can cost data. It does make a filesystem as
// large as its image, by the kernel's own means.
//
// # On disk
//
//	STATE_DIR/                   0700
//	├── lock                     flock: one driver per state directory
//	├── volumes/
//	│   └── vol-<16 characters>/ a volume exists if, and only if, this directory does
//	│       ├── volume.json      what was asked for; replaced by a rename when it changes
//	│       ├── exclusive        the volume was last published for one target alone
//	│       ├── data/            0755, the root of a directory volume      } one of
//	│       └── image            0600, the sparse file of an image volume  } the two
//	├── snapshots/
//	│   └── snap-<16 characters>/
//	│       ├── snapshot.json    what it is a snapshot of; written once
//	│       └── data/ or image   a full copy
//	├── groups/
//	│   └── grp-<16 characters>/
//	│       ├── group.json       all its snapshots; written once
//	│       └── snap-<16 characters>/
//	│           └── data/ or image
//	├── frozen/                  an empty file named after each volume that is frozen, see freeze.go
//	├── tmp/                     what is being made; one rename puts it in its place
//	└── trash/                   what is being deleted; one rename puts it here
//
// Creating fills tmp/ID, syncs it, and renames it to volumes/ID, snapshots/ID or groups/ID.
// Deleting renames that to trash/ID and then removes it, crossing no mount and following no link. A
// crash leaves something in tmp or trash, which the next start removes. Names that the driver does
// not make itself are left alone.
//
// # Copies
//
// Snapshots and volumes made from a source are full copies, which share data with it only where the
// filesystem below can clone files. What may take long runs on when the call that asked for it has
// been answered, see jobs.go. An image in use is cloned at one moment, while its filesystem is
// frozen; what nobody writes to is copied in any time, and nobody may begin to write meanwhile.
//
// # In the kernel
//
// The driver keeps no record of what is staged or published: the mount table and the loop devices
// say so, also after a restart. Only whether a target is to be the only one does not show there.
//
//	directory   data/ ──bind──▶ staging path ──bind──▶ target paths
//	image       image ─▶ loop ──mount──▶ staging path ──bind──▶ target paths
//	raw block   image ─▶ loop (nothing at the staging path) ──bind of the node──▶ target paths
//	            image ─▶ read-only loop ──bind of the node──▶ read-only target paths
//
// The bind of a node does not keep its device attached, so the driver holds the devices of block
// volumes open (hold.go), and takes no device whose node is still bound (loopnumber.go).
//
// A raw volume is published either for writing or read-only, never both at once: two loop
// devices do not share a cache. Linux 5.12 or newer is needed (mount_setattr, openat2,
// LOOP_CONFIGURE).
package localdriver
