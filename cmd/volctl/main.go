// Command volctl manages the volumes of this host through volagent.
package main

import (
	"os"

	"github.com/volagent/volagent/cli"
)

func main() { os.Exit(cli.Main()) }
