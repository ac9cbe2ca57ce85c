package main

import "math/rand/v2"

// graph shows for each file to which other files it refers.
type graph [][]bool

// number returns the number of references in the graph.
func (g graph) number() int {
	n := 0
	for _, row := range g {
		for _, refers := range row {
			if refers {
				n++
			}
		}
	}
	return n
}

// searches is the number of random orders that fewestBack improves. For this project's code, a
// larger number gives no better result.
const searches = 200

// fewestBack returns the number of references that point back in the best order that it finds. It
// starts from random orders, which are the same in each run, and improves each of them by moving
// one file at a time.
func fewestBack(g graph) int {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // The search must give the same result each time.
	best := g.number()
	for range searches {
		order := random.Perm(len(g))
		for improve(g, order) {
			continue
		}
		best = min(best, g.back(order))
	}
	return best
}

// back returns the number of references to files that come earlier in the order.
func (g graph) back(order []int) int {
	n := 0
	for i, from := range order {
		for _, to := range order[:i] {
			if g[from][to] {
				n++
			}
		}
	}
	return n
}

// improve moves one file to its best position, and reports whether the order became better.
func improve(g graph, order []int) bool {
	for i := range order {
		best, place, delta := 0, i, 0
		for j := i - 1; j >= 0; j-- { // move the file up past order[j]
			delta += cost(g, order[j], order[i])
			if delta < best {
				best, place = delta, j
			}
		}
		delta = 0
		for j := i + 1; j < len(order); j++ {
			delta += cost(g, order[i], order[j])
			if delta < best {
				best, place = delta, j
			}
		}
		if best < 0 {
			move(order, i, place)
			return true
		}
	}
	return false
}

// cost returns how many more references point back after two neighbouring files are swapped.
func cost(g graph, first, second int) int {
	delta := 0
	if g[first][second] {
		delta++
	}
	if g[second][first] {
		delta--
	}
	return delta
}

func move(order []int, from, to int) {
	file := order[from]
	for ; from < to; from++ {
		order[from] = order[from+1]
	}
	for ; from > to; from-- {
		order[from] = order[from-1]
	}
	order[to] = file
}
