// Command volagent-etcd is the bundled etcd of a cluster. It runs once on each host that joined the
// cluster with volctl, beside volagent and independent of it.
package main

import (
	"os"

	"github.com/volagent/volagent/agent/etcd"
)

func main() { os.Exit(etcd.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
