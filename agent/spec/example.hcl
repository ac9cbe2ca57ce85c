# A volume for volagent, in the form of Nomad's volume specification.
#
#   volctl volume validate FILE    checks this file and says what would change
#   volctl volume create FILE      has the plugin make the volume
#   volctl volume register FILE    takes a volume that exists at the plugin (set external_id)
#
# A file holds one volume.

# What this host calls the volume: 1 to 128 printable characters without "/". Required.
id = "data"

# The plugin that makes and mounts it; `volctl plugin list` shows what there is. Required.
# "local" comes with the agent.
plugin_id = "local"

# A class in place of plugin_id, for a new volume; `volctl class list` shows what there is. The class
# also sets other fields. docs/classes.md explains it.
# class = "fast"

# A name for the storage, where it should differ from the id. It cannot change later.
# name = "postgres-data"

# What the plugin calls a volume that exists already. Needed by `volume register`.
# external_id = "vol-0a1b2c3d"

# How large it is: at least, and at most. Each needs a unit: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB.
capacity_min = "1GiB"
# capacity_max = "10GiB"

# The ways in which the volume may be claimed, a block for each; the first that fits is used.
# This is the default.
# access_mode: single-node-reader-only, single-node-writer, single-node-single-writer,
#   single-node-multi-writer, multi-node-reader-only, multi-node-single-writer,
#   multi-node-multi-writer
# attachment_mode: file-system, block-device
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

# How a file system is made and mounted.
# mount_options {
#   fs_type     = "ext4"
#   mount_flags = ["noatime"]
# }

# Handed to the plugin when the volume is created; each plugin has its own. The local one knows
# type: directory (the default without a size; a size is noted and not enforced) or image (the
# default with a size: a file with a file system of that size).
# parameters {
#   type = "image"
# }

# Parameters that can change later, with volctl volume modify or with this file. Only for plugins
# that can modify volumes.
# mutable_parameters {
#   iops = "4000"
# }

# What a new volume is filled from: a snapshot, or another volume. At most one of the two.
# snapshot_id = "snap-0a1b2c3d"
# clone_id = "vol-0a1b2c3d"

# Where the volume must be reachable, and where it should be, in the plugin's own terms.
# topology_request {
#   required {
#     topology { segments { zone = "a" } }
#   }
#   preferred {
#     topology { segments { zone = "a", rack = "r1" } }
#   }
# }

# Handed to the plugin with every call for a registered volume, as the storage's vendor says.
# context {
#   share = "exports/data"
# }

# Secrets are read when a call needs them. Name where they are, or write the value, which
# the agent stores encrypted: then keep this file to yourself, or remove it.
# secrets {
#   password = { file = "/etc/volagent/secrets/data" } # an absolute path
#   token    = { credential = "data-token" }           # a systemd credential of the agent
#   user     = { env = "DATA_USER" }                   # the agent's environment
#   realm    = "the value itself"
# }

# What a container runtime's "remove volume" may do: retain (the default) or delete.
# reclaim = "retain"

# Which hosts have the volume: host (the default) or shared, for all hosts of a cluster.
# scope = "host"

# After a reboot without an answer of the cluster's etcd: wait (the default), or trust-local, to mount a
# shared volume under the hold that this host has recorded.
# boot = "wait"

# If a host that holds a shared volume is lost: proven (the default), so that another host takes the volume over when it
# is proven that the lost host no longer writes, or never.
# takeover = "proven"
