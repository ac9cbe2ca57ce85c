package api

// Version is the release from which both binaries were built. The build sets it with -ldflags -X.
// "dev" means that the build did not set it.
var Version = "dev"
