package status

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/backup"
	"github.com/volagent/volagent/agent/provision"
	"github.com/volagent/volagent/statedb"
	"github.com/volagent/volagent/volmgr/suggest"
)

// fault describes why the agent cannot write changes to the state database.
func (s *Service) fault() (p api.Problem, ok bool) {
	err := s.Records.Fault()
	var foreign *statedb.Foreign
	switch {
	case err == nil:
		return p, false
	case errors.As(err, &foreign):
		return api.Problem{Subject: api.SubjectAgent, Message: err.Error(), Command: "systemctl restart volagent"}, true
	}

	return api.Problem{Subject: api.SubjectAgent, Message: "cannot write the state database: " + err.Error(), Command: suggest.Command("df %s", s.DataDir)}, true
}

// lost reports that the state database was lost, as long as an adopted claim or the damaged file
// still exists.
func (s *Service) lost() (p api.Problem, ok bool) {
	loss := s.Records.Node().Loss
	if loss.At.IsZero() {
		return p, false
	}

	held := 0
	for _, r := range s.Records.Volumes() {
		held += backup.Adopted(r)
	}
	p = api.Problem{Subject: api.SubjectAgent, Message: "the state database was lost and made anew " + loss.At.Format(time.RFC3339)}
	if loss.Why != "" {
		p.Message += ": " + loss.Why
	}
	if loss.Kept != "" {
		if _, err := os.Lstat(loss.Kept); err == nil {
			p.Message += "; the damaged file is kept as " + loss.Kept
			p.Command, ok = suggest.Command("rm %s", loss.Kept), true
		}
	}

	if !loss.Copy.IsZero() {
		p.Message += "; volumes, plugins and pending calls are those of an automatic copy of " + loss.Copy.Format(time.RFC3339)
	}
	p.Message += fmt.Sprintf("; adopted: %d volumes with %d claims, of which %d are held", loss.Volumes, loss.Claims, held)
	if held > 0 {
		p.Command, ok = "volctl claim list", true
	}

	return p, ok
}

// leftovers returns a problem for each forced deregister that has leftovers. It skips a deregister
// whose only leftover is the possible effect of a pending call.
func (s *Service) leftovers() []api.Problem {
	var out []api.Problem
	for _, d := range statedb.Leftovers.All(s.Records) {
		left := provision.DescribeLeftovers(d.Whole())
		if len(left) == 0 {
			continue
		}

		v := d.Record.Volume
		calls, command := d.Whole().PendingCallState(s.Queue.Last(d.Whole()), s.Plugins.View(v.PluginID)), suggest.Command("volctl plugin status %s", v.PluginID)
		if calls.Failed {
			command = suggest.Words(calls.GiveUp)
		}
		out = append(out, api.Problem{
			Subject: v.ID,
			Message: fmt.Sprintf("was deregistered by force %s ago: %s; %s", time.Since(d.Since).Round(time.Second), strings.Join(left, "; "), calls.How),
			Command: command,
		})
	}

	return out
}

// cutTests returns a problem for each interrupted plugin test whose volume still exists.
func (s *Service) cutTests() (all []api.Problem) {
	for id, left := range s.Plugins.Usage.Scratches() {
		if s.Tests.Testing(id) {
			continue
		}

		all = append(all, api.Problem{
			Subject: id, Since: left.Begun, Message: fmt.Sprintf("a test of the plugin left volume %q, which is not undone", left.Name()),
			Command: suggest.Command("volctl plugin test %s", id),
		})
	}

	return all
}

// leastFree is the free space, in bytes, that the data dir's file system should have. The state
// database grows by some MiB at once, and the events are stored beside it.
const leastFree = 32 << 20

// full reports that the file system of the data dir is nearly full, so that an operator can act
// before a claim fails.
func (s *Service) full() []api.Problem {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.DataDir, &fs); err != nil {
		return nil // the method fault reports a failing disk
	}

	free := int64(fs.Bavail) * fs.Frsize
	inodes := fs.Files == 0 || fs.Ffree > 0 // some file systems do not count inodes
	if free >= leastFree && inodes {
		return nil
	}

	words := fmt.Sprintf("the file system of %s is nearly full: %d KiB are free", s.DataDir, free>>10)
	if !inodes {
		words = fmt.Sprintf("the file system of %s has no inode left", s.DataDir)
	}

	return []api.Problem{{Subject: api.SubjectAgent, Message: words, Command: suggest.Command("df %s", s.DataDir)}}
}

// Unscraped reports a problem if the metrics cannot be served on the configured address.
func (s *Service) Unscraped() (all []api.Problem) {
	if s.Scraped == nil {
		return nil
	}

	if err := s.Scraped.Fault(); err != nil {
		why, command := unheard(err, s.MetricsAddress)
		all = append(all, api.Problem{
			Subject: api.SubjectAgent, Message: fmt.Sprintf("cannot serve the metrics on %s: %v%s; it is tried again every 5s", s.MetricsAddress, err, why), Command: command,
		})
	}

	return all
}

// unheard explains why the agent cannot listen on an address, and names a command that shows the
// reason.
func unheard(err error, address string) (why, command string) {
	// The configuration check has already validated the address.
	_, port, _ := net.SplitHostPort(address)
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return " (no interface of this host has it now)", "ip address"
	case errors.Is(err, syscall.EAFNOSUPPORT), errors.Is(err, syscall.EPERM):
		return " (the service may not use the network, and systemd did not open it)", "systemctl status volagent dbus"
	case errors.Is(err, syscall.EACCES):
		return " (the service may use ports from 1024 on)", "volagent check-config"
	default:
		return "", "ss -ltnp sport = :" + port
	}
}
