package jobs

import (
	"fmt"
	"sync/atomic"
)

// Progress counts the bytes of a copy.
type Progress struct{ Done, Total atomic.Int64 }

// String returns the copied bytes and the total in words.
func (p *Progress) String() string {
	if p.Total.Load() == 0 {
		return "nothing yet" // also for shared data, which is not counted
	}
	return HumanBytes(p.Done.Load()) + " of " + HumanBytes(p.Total.Load())
}

// HumanBytes returns a number of bytes with a unit, for people.
func HumanBytes(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1024, 0
	for ; f >= 1024; i++ {
		f /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}
