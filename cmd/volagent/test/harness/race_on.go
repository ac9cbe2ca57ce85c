//go:build race

package harness

// raceDetector is true if the tests run under the race detector. In this case the tests also build
// the agent with the race detector. They build volctl without it, because volctl starts often and
// would become slow.
const raceDetector = true
