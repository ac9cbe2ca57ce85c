package main

import "math/rand/v2"

// graph records references: g[i][j] is set if file i refers to file j.
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

// searches is the number of random orders with which fewestBack starts. A larger number gives no
// better result for this project.
const searches = 200

// fewestBack returns the smallest number of references that point back in any order that it finds.
// It starts with random orders, which are the same in each run, and improves each order by moving
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

// back returns the number of references to earlier files in the given order.
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

// improve moves one file to its best position, and reports whether the order is now better.
func improve(g graph, order []int) bool {
	for i := range order {
		best, place, delta := 0, i, 0
		for j := i - 1; j >= 0; j-- { // move the file before order[j]
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

// cost returns by how much the number of references that point back grows if two adjacent files are
// swapped.
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
