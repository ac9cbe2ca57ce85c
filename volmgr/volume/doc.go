// Package volume is the domain: what a volume, a claim and a plugin are, who
// may claim what, and how a volume gets from one state to the next. It imports
// the standard library alone and touches nothing: all of its decisions are
// functions of what they are given. See Next for the drawing of a volume's life.
package volume
