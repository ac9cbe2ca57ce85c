package api

// Version is the release of both binaries. The build sets it with -ldflags -X. A build that does
// not set it is "dev".
var Version = "dev"
