//go:build race

package main_test

// raceDetector builds the agent with the race detector too: its goroutines are
// what it is to look at. volctl starts often, and would take its time.
const raceDetector = true
