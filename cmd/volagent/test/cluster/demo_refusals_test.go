package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
)

// refuseClaims claims the volume on other hosts while host a has it.
func (d *demo) refuseClaims() {
	d.refused(d.b, 5, `held by host "h1"`, "volctl", "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	d.proof("the claim is refused, and its words name the host that holds the volume")
	d.refused(d.b, 5, "is used in mode single-node-multi-writer by host h1", "volctl", "volume", "claim", "db", "--alloc", "web",
		"--access-mode", "multi-node-multi-writer", "--timeout", "1s")
	d.proof("another access mode must wait until no host uses the volume")
	d.refused(d.b, 3, `no volume "dbb"`, "volctl", "volume", "claim", "dbb", "--alloc", "web", "--timeout", "1s")
}

// refuseDefinitions changes the definition of the volume while host a has it.
func (d *demo) refuseDefinitions() {
	d.refused(d.b, 4, "held by host h1", "volctl", "volume", "deregister", "db")
	d.refused(d.b, 4, "h1", "volctl", "volume", "unshare", "db")
	d.proof("the cluster keeps a volume that a host holds")

	d.refused(d.b, 4, "external_id", "volctl", "volume", "register", d.volumeFile(d.b, "san", "db", "disk-other", "single-node-multi-writer"))
	d.refused(d.b, 4, `"db"`, "volctl", "volume", "register", d.volumeFile(d.b, "san", "copy", "disk-db", "single-node-multi-writer"))
	d.proof("one id is one volume, and one disk has one id, in the whole cluster")
}

// refuseHosts drains host c and lets hosts enter the cluster that may not.
func (d *demo) refuseHosts() {
	d.run(d.c, "volctl", "node", "drain", "--deadline", "20s")
	d.refused(d.c, 4, "this host is draining", "volctl", "volume", "claim", "db", "--alloc", "web", "--timeout", "1s")
	d.run(d.c, "volctl", "node", "undrain")
	d.refused(d.b, 4, `host "h1" is alive`, "volctl", "node", "replace", d.a.Name, "--reason", "broken", "-y")
	d.proof("a person cannot declare a host gone whose agent is alive")

	d.refused(d.b, 4, "already", "volctl", "cluster", "init", "--no-start")
	token, err := os.ReadFile(filepath.Join(d.c.Dir, "token"))
	d.c.Must(err)
	file := filepath.Join(d.b.Dir, "used-token")
	d.b.Must(os.WriteFile(file, []byte(strings.TrimSpace(string(token))), 0o600))
	d.refused(d.b, 4, "already", "volctl", "cluster", "join", "--no-start", "--token-file", file)
	d.proof("a host makes no second cluster, and joins no other one")
}
