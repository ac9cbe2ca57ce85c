package cluster_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"testing"
)

// seedOf returns the seed that a flag has set, or a random one if the flag is 0. It logs how to repeat
// the choices of the test.
func seedOf(t *testing.T, flag string, set uint64) uint64 {
	t.Helper()
	seed := set
	for seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat the choices of this run with -%s=%d", flag, seed)
	return seed
}

// diceOf returns a random number generator that depends only on a seed and a purpose. So a test makes
// the same choices if it runs without the other tests.
func diceOf(seed uint64, purpose string) *rand.Rand {
	name := fnv.New64a()
	_, _ = name.Write([]byte(purpose)) // a hash accepts everything
	return rand.New(rand.NewPCG(seed, name.Sum64()))
}

// TestSeeds checks that a seed repeats the points of TestCrash. Each victim dies at one of the points,
// and other seeds and scenarios have other points. The choice stays if another run has a point more.
func TestSeeds(t *testing.T) {
	var points []string
	for i := range 40 {
		points = append(points, fmt.Sprintf("before call %d", i/2))
	}
	longer := append([]string{"after commit"}, points...)

	different, stayed := map[string]bool{}, 0
	for seed := range uint64(20) {
		for _, scenario := range []string{"claim", "detach"} {
			all := chosen(points, seed, scenario, false)
			again := chosen(points, seed, scenario, false)
			if fmt.Sprint(all) != fmt.Sprint(again) {
				t.Errorf("seed %d gives %v, and then %v", seed, all, again)
			}
			for i, d := range chosen(longer, seed, scenario, false) {
				if d.point == all[i].point+1 {
					stayed++
				}
			}

			died := map[string]int{}
			for _, d := range all {
				died[d.victims[0].name]++
				if len(d.victims) != 1 || d.point < 1 || d.point > len(points) {
					t.Errorf("seed %d: %d victims die at point %d", seed, len(d.victims), d.point)
				}
			}
			for _, v := range victims {
				if died[v.name] != 1 {
					t.Errorf("seed %d: victim %s dies %d times", seed, v.name, died[v.name])
				}
			}
			different[fmt.Sprint(all)] = true
		}
	}
	if len(different) < 35 {
		t.Errorf("20 seeds and 2 scenarios have only %d different choices", len(different))
	}
	if stayed < 100 {
		t.Errorf("with one point more, only %d of 120 choices stay", stayed)
	}

	full := chosen(points, 1, "claim", true)
	for i, d := range full {
		if d.point != i+1 || len(d.victims) != len(victims) {
			t.Errorf("a full test has the deaths %+v", d)
		}
	}
	if len(full) != len(points) {
		t.Errorf("a full test has %d points, want %d", len(full), len(points))
	}
}
