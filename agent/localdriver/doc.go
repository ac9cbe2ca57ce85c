// Package localdriver is the bundled CSI driver, "builtin: local". It runs as a separate process
// and is reached only through its CSI socket. Of this module, it imports only small helper packages
// and the packages below it, each of which has one job.
//
// It offers two types of volume, chosen by the create parameter "type":
//
//   - "directory" is a directory of this host, bind-mounted at each path that needs it. The driver
//     records and reports the requested capacity but does not enforce it. It enforces the mutable
//     parameter "quota" if the filesystem below has project quotas. A directory volume works without
//     root, in a user namespace with its own mount namespace.
//   - "image" is a sparse file behind a loop device. It holds an ext4 (the default), xfs or btrfs
//     filesystem, named by the capability's fs_type or by the parameter "fs_type". If only block
//     access is requested, it is a raw block device instead. Its size is enforced. It needs root.
//
// Without a type, a volume with a size is one that cannot outgrow the size: a directory with a
// quota, or an image if the filesystem has no quotas (defaulttype.go). A volume without a size is a
// directory.
//
// The driver makes a filesystem once, when it creates the volume, on a file that no other process
// can see yet. Staging never formats a device, so a wrong detection cannot destroy data. Staging
// does grow the filesystem to the size of its image, through the kernel's own interfaces.
//
// # On disk
//
//	STATE_DIR/                   0700
//	├── lock                     flock: one driver per state directory
//	├── volumes/
//	│   └── vol-<16 characters>/ a volume exists if, and only if, this directory does
//	│       ├── volume.json      requested properties; replaced by a rename when they change
//	│       ├── exclusive        exists if the volume may have only one target
//	│       ├── data/            0755, the root of a directory volume      } one of
//	│       └── image            0600, the sparse file of an image volume  } the two
//	├── snapshots/
//	│   └── snap-<16 characters>/
//	│       ├── snapshot.json    description of the snapshot; written once
//	│       └── data/ or image   a full copy
//	├── groups/
//	│   └── grp-<16 characters>/
//	│       ├── group.json       list of the group's snapshots; written once
//	│       └── snap-<16 characters>/
//	│           └── data/ or image
//	├── frozen/                  an empty file for each frozen volume, see freeze.go
//	├── tmp/                     unfinished objects; one rename moves a finished one to its place
//	└── trash/                   deleted objects; one rename moves an object here
//
// To create an object, the driver fills tmp/ID, syncs it, and renames it to volumes/ID,
// snapshots/ID or groups/ID. To delete one, it renames the directory to trash/ID and then removes
// it. The removal crosses no mount and follows no link. A crash leaves files in tmp or trash, which
// the next start removes. The driver does not touch files whose names it cannot have made itself.
//
// # Copies
//
// Snapshots, and volumes made from a source, are full copies. They share data with their source
// only if the filesystem that contains the state directory can clone files. A long copy continues
// after the call that requested it has been answered (package jobs). An image in use is cloned at
// one moment, while its filesystem is frozen. A volume without writers can be copied slowly, and no
// writer may start until the copy is complete.
//
// # In the kernel
//
// The driver keeps no record of staged or published volumes. It finds them in the mount table and
// among the loop devices, also after a restart. Only one fact is not visible there: whether a volume
// may have only one target.
//
//	directory   data/ ──bind──▶ staging path ──bind──▶ target paths
//	image       image ─▶ loop ──mount──▶ staging path ──bind──▶ target paths
//	raw block   image ─▶ loop (nothing at the staging path) ──bind of the node──▶ target paths
//	            image ─▶ read-only loop ──bind of the node──▶ read-only target paths
//
// The bind mount of a device node does not keep the device attached, so the driver holds the
// devices of block volumes open (hold.go). It also attaches no image to a device number whose node
// is still bind-mounted (package loopdev).
//
// A raw volume is published either for writing or read-only, never both at once, because two loop
// devices do not share a cache. The driver needs Linux 5.12 or newer (mount_setattr, openat2,
// LOOP_CONFIGURE).
package localdriver
