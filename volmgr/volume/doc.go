// Package volume is the domain. It defines volumes, claims and plugins, decides which alloc may
// claim a volume, and decides how a volume gets from one state to the next. The package imports
// only the standard library and package suggest. It has no effects: every decision is a function of
// its arguments. See Next for the drawing of a volume's life.
package volume
