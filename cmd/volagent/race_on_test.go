//go:build race

package main_test

// raceDetector is true if the tests run under the race detector. The agent is then built with it
// too, because its goroutines are the ones to check. volctl is not, because it is started often and
// would become slow.
const raceDetector = true
