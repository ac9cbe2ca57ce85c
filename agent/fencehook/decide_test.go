package fencehook

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestDecide checks the meaning of each way in which a call can end. Only status 2 together with the
// printed word may mean that a host is off.
func TestDecide(t *testing.T) {
	exit := func(code int, stdout string) ending {
		return ending{started: true, code: code, stdout: stdout, output: strings.TrimSpace(stdout)}
	}
	killed := ending{started: true, code: -1, signal: "SIGSEGV", stdout: "off\n"}
	late := ending{started: true, failure: errors.New("it did not end within 1s"), code: exitOff, stdout: "off\n"}
	missing := ending{failure: errors.New("no such file"), stdout: "off\n"}
	const own, agent = KindExecutable, KindAgent

	for _, c := range []struct {
		kind   Kind
		action Action
		end    ending
		want   answer
		said   string
	}{
		{own, ActionOff, exit(0, ""), done, "off succeeded"},
		{own, ActionOff, exit(1, "no route\nto the BMC\n"), failed, "off failed with exit status 1: to the BMC"},
		{own, ActionOff, exit(2, "off\n"), failed, "off failed with exit status 2: off"},
		{own, ActionOff, exit(3, ""), notMine, ""},
		{own, ActionOff, exit(127, ""), failed, "off failed with exit status 127"},
		{own, ActionOff, killed, failed, "off failed: it was killed by signal SIGSEGV"},
		{own, ActionOff, late, failed, "off failed: it did not end within 1s"},
		{own, ActionOff, missing, failed, "off failed: no such file"},
		{own, ActionOn, exit(0, ""), done, ""},
		{own, ActionOn, exit(1, ""), failed, ""},
		{own, ActionOn, exit(3, ""), notMine, ""},

		{own, ActionStatus, exit(0, ""), isOn, "status says on"},
		{own, ActionStatus, exit(0, "off\n"), isOn, ""},
		{own, ActionStatus, exit(2, "off\n"), isOff, "status says off"},
		{own, ActionStatus, exit(2, "asking the BMC\n  off\r\n\n"), isOff, ""},
		{own, ActionStatus, exit(2, ""), unknown, `status exited with status 2, but did not print "off"`},
		{own, ActionStatus, exit(2, "hook: 3: Syntax error"), unknown, `did not print "off": hook: 3: Syntax error`},
		{own, ActionStatus, exit(2, "off\nI mean on\n"), unknown, ""},
		{own, ActionStatus, exit(2, "offline\n"), unknown, ""},
		{own, ActionStatus, exit(2, "Status: OFF\n"), unknown, ""},
		{own, ActionStatus, exit(1, "off\n"), unknown, ""},
		{own, ActionStatus, exit(3, "off\n"), notMine, ""},
		{own, ActionStatus, exit(255, "off\n"), unknown, ""},
		{own, ActionStatus, killed, unknown, ""},
		{own, ActionStatus, late, unknown, ""},
		{own, ActionStatus, missing, unknown, ""},

		{agent, ActionOff, exit(0, "Success: Powered OFF\n"), done, ""},
		{agent, ActionOff, exit(1, ""), failed, ""},
		{agent, ActionOff, exit(3, ""), failed, "off failed with exit status 3"},
		{agent, ActionStatus, exit(0, "Status: ON\n"), isOn, ""},
		{agent, ActionStatus, exit(2, "Status: OFF\n"), isOff, ""},
		{agent, ActionStatus, exit(2, "python3: can't open file '/usr/sbin/fence_ipmilan'"), unknown, `did not print "Status: OFF"`},
		{agent, ActionStatus, exit(2, "off\n"), unknown, ""},
		{agent, ActionStatus, exit(3, ""), unknown, ""},
		{agent, ActionStatus, exit(1, ""), unknown, ""},
	} {
		got := decide(c.kind, c.action, c.end)
		if got.answer != c.want || !strings.Contains(got.said, c.said) || got.said == "" {
			t.Errorf("%s %s, %+v: got %d %q, want %d %q", c.kind, c.action, c.end, got.answer, got.said, c.want, c.said)
		}
	}
}

// TestNoOtherOff checks all exit statuses: a host is off with none but 2, and never without the word.
func TestNoOtherOff(t *testing.T) {
	for _, kind := range []Kind{KindExecutable, KindAgent} {
		for _, action := range []Action{ActionOff, ActionOn, ActionStatus} {
			for code := range 256 {
				with := decide(kind, action, ending{code: code, stdout: offLine(kind) + "\n"}).answer
				without := decide(kind, action, ending{code: code}).answer
				if (with == isOff) != (action == ActionStatus && code == 2) || without == isOff {
					t.Error(fmt.Sprint(kind, action, code), with, without)
				}
			}
		}
	}
}
