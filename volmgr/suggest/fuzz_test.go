package suggest_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/volagent/volagent/volmgr/suggest"
)

// shellWords splits a command in the same way as a shell that knows $'…'. It fails if an unquoted
// character has a special meaning for the shell.
func shellWords(command string) (words []string, err error) {
	for part := command; part != ""; {
		var word strings.Builder
		for part != "" && part[0] != ' ' {
			n, text := 0, ""
			switch {
			case strings.HasPrefix(part, "$'"):
				n, text, err = octalQuoted(part)
			case part[0] == '\'':
				n = strings.IndexByte(part[1:], '\'') + 2
				text = part[1:max(n-1, 1)]
			case strings.HasPrefix(part, `\'`):
				n, text = 2, "'"
			case strings.ContainsRune("@%+=:,./_-", rune(part[0])) || part[0] < utf8.RuneSelf && (unicode.IsLetter(rune(part[0])) || unicode.IsDigit(rune(part[0]))):
				n, text = 1, part[:1]
			}
			if n < 1 || n > len(part) || part[0] == '=' && word.Len() == 0 || err != nil {
				return nil, fmt.Errorf("a shell does something at %q, %w", part, err)
			}
			word.WriteString(text)
			part = part[n:]
		}
		words = append(words, word.String())
		part = strings.TrimPrefix(part, " ")
	}
	return words, nil
}

// octalQuoted decodes $'…' with octal escapes.
func octalQuoted(part string) (n int, text string, err error) {
	var b strings.Builder
	for n = 2; n < len(part) && part[n] != '\''; {
		if part[n] != '\\' {
			b.WriteByte(part[n])
			n++
			continue
		}
		c, err := strconv.ParseUint(part[n+1:min(n+4, len(part))], 8, 8)
		if err != nil {
			return 0, "", err
		}
		b.WriteByte(byte(c))
		n += 4
	}
	return n + 1, b.String(), nil
}

// FuzzCommand checks that a suggested command consists of the intended words, regardless of the
// inserted values. The command must be one line that a terminal shows unchanged.
func FuzzCommand(f *testing.F) {
	for i, value := range hostile {
		f.Add(value, hostile[len(hostile)-1-i], "web.service", 7)
		f.Add("data", "web", value+".service", -1)
	}
	f.Fuzz(func(t *testing.T, id, alloc, unit string, pid int) {
		check := func(command string, want ...string) {
			t.Helper()
			got, err := shellWords(command)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s\n%q, %v, want\n%q", command, got, err, want)
			}
			if strings.ContainsFunc(command, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(command) {
				t.Errorf("%q is not printable", command)
			}
		}
		command := suggest.Command("volctl volume detach %s %s --without-plugin=%s", id, alloc, id)
		if strings.HasPrefix(id, "-") || strings.HasPrefix(alloc, "-") {
			check(command, "volctl", "volume", "detach", "--without-plugin="+id, "--", id, alloc)
		} else {
			check(command, "volctl", "volume", "detach", id, alloc, "--without-plugin="+id)
		}
		stop := suggest.Command("systemctl stop %s", unit)
		switch guarded := strings.HasPrefix(unit, "-"); {
		case !suggest.ValidUnit(unit) && stop != "":
			t.Errorf("%q is stopped by %q", unit, stop)
		case suggest.ValidUnit(unit) && guarded:
			check(stop, "systemctl", "stop", "--", unit)
		case suggest.ValidUnit(unit):
			check(stop, "systemctl", "stop", unit)
		}
		if !suggest.Stoppable(unit) {
			check(suggest.Stop(unit, pid), "kill", strconv.Itoa(pid))
		}
	})
}

// FuzzUnitOf checks that UnitOf returns the unit to which the service manager assigned a process. A
// process can make control groups below its unit, and UnitOf must ignore them. UnitOf must never
// return a name that systemd does not allow.
func FuzzUnitOf(f *testing.F) {
	for _, value := range hostile {
		f.Add(value, "0::/"+value)
	}
	for _, text := range []string{
		"db.service", "../db.service", "/db.service", "1:name=systemd:/db.service", "0::/db.service", "0::/system.slice/_web.service/x", "0::/user.slice/user-0.slice/user@0.service/app.slice/x.service\n",
		"0::/a.slice\n1:name=systemd:/b.slice/c.service\n", "0:::/x.service", ":::::", "0::/-x.service",
	} {
		f.Add(text, text)
	}
	f.Fuzz(func(t *testing.T, below, raw string) {
		if unit := suggest.UnitOf(raw); unit != "" && (!suggest.ValidUnit(unit) || !strings.Contains(raw, unit) || strings.Contains(unit, "/")) {
			t.Errorf("%q is in the unit %q", raw, unit)
		}
		if strings.Contains(below, "\n") {
			return // the kernel does not allow control groups with such names
		}
		for _, hierarchy := range []string{"0::", "1:name=systemd:"} {
			if unit := suggest.UnitOf(hierarchy + "/system.slice/web.service/" + below + "\n"); unit != "web.service" {
				t.Errorf("below web.service %q is the unit %q", below, unit)
			}
			if unit := suggest.UnitOf(hierarchy + "/user.slice/user-1000.slice/session-2.scope/" + below + "\n"); suggest.Stoppable(unit) {
				t.Errorf("in a session %q is the unit %q", below, unit)
			}
		}
	})
}
