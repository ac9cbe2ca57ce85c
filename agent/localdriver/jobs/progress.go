package jobs

import (
	"fmt"

	"github.com/volagent/volagent/volmgr/treecopy"
)

// Progress counts the bytes of a copy, and describes them for people.
type Progress struct{ treecopy.Progress }

// String describes how many bytes of the total have been copied.
func (p *Progress) String() string {
	if p.Total.Load() == 0 {
		return "nothing yet" // shared data is not counted, so Total may stay 0
	}
	return HumanBytes(p.Done.Load()) + " of " + HumanBytes(p.Total.Load())
}

// HumanBytes formats a number of bytes with a unit, for people.
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
