package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// namespaces describes the network and mount namespaces that the tests have made and that still
// exist. The kernel keeps a namespace while a thread is in it, or a descriptor refers to it. namespaces
// therefore looks at the threads and descriptors of this process. It also looks at the processes below
// this process.
func namespaces() []string {
	var found []string
	for _, kind := range []string{"net", "mnt"} {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return []string{err.Error()}
		}
		holders, err := filepath.Glob("/proc/self/task/*/ns/" + kind)
		if err != nil {
			return []string{err.Error()}
		}
		for _, pid := range descendants(os.Getpid()) {
			holders = append(holders, fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		}
		for _, holder := range holders {
			// Readlink fails if the process has just ended.
			if ns, err := os.Readlink(holder); err == nil && ns != own {
				found = append(found, holder+" "+ns)
			}
		}
		open, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			return []string{err.Error()}
		}
		for _, fd := range open {
			if ns, err := os.Readlink(fd); err == nil && strings.HasPrefix(ns, kind+":[") {
				found = append(found, fd+" "+ns)
			}
		}
	}
	return found
}

// descendants returns the pids of all processes below a process.
func descendants(of int) (found []int) {
	children := map[int][]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		panic(err) // the pattern is malformed
	}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // the process has just ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			panic(err) // the pattern matches only digits at the beginning
		}
		// The name of the program is in parentheses and may contain spaces. The state and the pid of
		// the parent follow it.
		f := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		if parent, err := strconv.Atoi(f[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	for next := []int{of}; len(next) > 0; next = next[1:] {
		found = append(found, children[next[0]]...)
		next = append(next, children[next[0]]...)
	}
	slices.Sort(found)
	return found
}
