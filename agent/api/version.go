package api

// Version is the release of both binaries. The build sets it with -ldflags -X. The default is
// "dev".
var Version = "dev"
