package cert

import (
	"fmt"
	"time"
)

// Period is the time in which a certificate is valid.
type Period struct{ Begin, End time.Time }

// PeriodOf returns the period of a certificate in PEM format.
func PeriodOf(certPEM []byte) (Period, error) {
	c, err := Parse(certPEM)
	if err != nil {
		return Period{}, err
	}
	return Period{c.NotBefore, c.NotAfter}, nil
}

// RenewAt returns the time at which the certificate is renewed: after two thirds of its life.
func (p Period) RenewAt() time.Time { return p.Begin.Add(p.End.Sub(p.Begin) * 2 / 3) }

// Expired reports whether the certificate has ended.
func (p Period) Expired(now time.Time) bool { return now.After(p.End) }

// Words describes a certificate that needs attention. It returns "" for a certificate that does not.
// A healthy host renews its certificate at two thirds of its life, so that words about a certificate
// near its end mean that the renewal fails.
func (p Period) Words(now time.Time) string {
	const late = 12 // the renewal is late when a twelfth of the life has passed since it was due
	life := p.End.Sub(p.Begin)
	switch {
	case now.Before(p.Begin):
		return fmt.Sprintf("is not valid before %s: a clock is wrong by at least %s", stamp(p.Begin), span(p.Begin.Sub(now)))
	case p.Expired(now):
		return fmt.Sprintf("ended %s ago, at %s", span(now.Sub(p.End)), stamp(p.End))
	case now.After(p.RenewAt().Add(life / late)):
		return fmt.Sprintf("ends in %s, at %s, and could not be renewed", span(p.End.Sub(now)), stamp(p.End))
	default:
		return ""
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// span writes a duration in its greatest unit.
func span(d time.Duration) string {
	unit, name := time.Second, "s"
	switch {
	case d >= 48*time.Hour:
		unit, name = 24*time.Hour, " days"
	case d >= 2*time.Hour:
		unit, name = time.Hour, " h"
	case d >= 2*time.Minute:
		unit, name = time.Minute, " min"
	}
	return fmt.Sprintf("%d%s", d/unit, name)
}
