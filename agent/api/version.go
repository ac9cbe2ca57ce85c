package api

// Version is the release both binaries were built from. The build stamps it
// with -ldflags -X; "dev" means that nothing was stamped.
var Version = "dev"
