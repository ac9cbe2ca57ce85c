package fencehook

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// soon is the time in which something must happen that needs no wait.
const soon = 10 * time.Second

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !condition(); {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen within %s", what, soon)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// read returns the content of a file, or "".
func read(path string) string {
	raw, _ := os.ReadFile(path)
	return strings.TrimSpace(string(raw))
}

// ended reports whether the process whose id is in a file has ended.
func ended(file string) bool {
	pid, err := strconv.Atoi(read(file))
	if err != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// killAtEnd kills the process whose id is in a file when the test ends.
func killAtEnd(t *testing.T, file string) {
	t.Cleanup(func() {
		if pid, err := strconv.Atoi(read(file)); err == nil && !ended(file) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
}

// power is a script that remembers in a file whether the host is off. Its directory is in $d.
func power(dir string) string {
	return "d=" + dir + `
case $1 in
off) echo off >$d/power; echo switched off $2;;
on) rm -f $d/power; echo switched on $2;;
status) if [ -e $d/power ]; then echo off; exit 2; fi; echo on;;
esac`
}

// TestOff switches a host off through one hook. Off is proven only if the hook has switched the host
// off and its status then says off.
func TestOff(t *testing.T) {
	// The scripts of the hooks find their directory in $d.
	for _, c := range []struct {
		name, body string
		limits     Limits
		proven     bool
		started    bool
		power      Power
		reason     string
		output     string
	}{
		{
			name: "the host goes off", body: `case $1 in off) exit 0;; status) echo off; exit 2;; esac`,
			proven: true, started: true, power: PowerOff, reason: `hook "bmc" has switched host "h1" off, and its status confirms it`, output: "off",
		}, {
			name: "the host needs some time", body: `case $1 in off) ;; status) echo x >>$d/asked; [ $(wc -l <$d/asked) -ge 4 ] || exit 0; echo off; exit 2;; esac`,
			limits: Limits{Settle: soon}, proven: true, started: true, power: PowerOff,
		}, {
			name: "the status is unknown at first", body: `case $1 in off) ;; status) echo x >>$d/asked; [ $(wc -l <$d/asked) -ge 4 ] || exit 1; echo off; exit 2;; esac`,
			limits: Limits{Settle: soon}, proven: true, started: true, power: PowerOff,
		}, {
			name: "the hook lies", body: `[ $1 = off ] || echo 'power: on'`,
			started: true, power: PowerOn, reason: `later status says on`, output: "bmc status: power: on",
		}, {
			name: "the status is unknown", body: `[ $1 = off ] || { echo no route >&2; exit 1; }`,
			started: true, power: PowerUnknown, reason: "later status failed with exit status 1: no route",
		}, {
			name: "the status is a shell's complaint", body: "[ $1 = off ] && exit\ncase x in (",
			started: true, power: PowerUnknown, reason: `status exited with status 2, but did not print "off"`,
		}, {
			name: "off fails, although the host is off", body: `[ $1 = off ] && { echo denied; exit 1; }; echo off; exit 2`,
			started: true, reason: `hook "bmc": off failed with exit status 1: denied`, output: "bmc off: denied",
		}, {
			name: "off hangs, although the host is off", body: `[ $1 = off ] && { echo waiting; sleep 1000; }; echo off; exit 2`,
			limits: Limits{Off: 200 * time.Millisecond}, started: true, reason: "off failed: it did not end within 200ms, and was killed", output: "bmc off: waiting",
		}, {
			name: "the status hangs", body: `[ $1 = off ] || { echo off; sleep 1000; }`,
			limits: Limits{Status: 200 * time.Millisecond, Settle: time.Millisecond}, started: true, power: PowerUnknown, reason: "status failed: it did not end within 200ms",
		}, {
			name: "off is killed by a signal", body: `[ $1 = off ] && kill -SEGV $$; echo off; exit 2`,
			started: true, reason: "off failed: it was killed by signal SIGSEGV",
		}, {
			name: "the hook is not for this host", body: `exit 3`,
			reason: "serves this host",
		}, {
			name: "the hook cannot be executed", body: "", // the test replaces its first line
			reason: `hook "bmc": off failed: fork/exec `,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, dir := newHooks(t, c.limits.or(short))
			script(t, dir, "bmc", "d="+dir+"\n"+c.body)
			if c.body == "" {
				write(t, dir+"/bmc", "#!/no/such/interpreter\n", 0o755)
			}

			r := h.Off(t.Context(), Target{Host: "h1"})
			if r.Proven != c.proven || r.Done != c.proven || r.Started != c.started || r.Power != c.power {
				t.Errorf("got %+v", r)
			}
			if !strings.Contains(r.Reason, c.reason) || strings.Contains(r.Reason, "\n") {
				t.Errorf("the reason is %q, want %q", r.Reason, c.reason)
			}
			if !strings.Contains(r.Output(), c.output) {
				t.Errorf("the output is %q, want %q", r.Output(), c.output)
			}
			if !c.proven && !strings.HasPrefix(r.Reason, `cannot prove that host "h1" is off: `) {
				t.Errorf("the reason is %q", r.Reason)
			}
		})
	}
}

// TestOrder checks that hooks are called by name until one has switched the host off.
func TestOrder(t *testing.T) {
	h, dir := newHooks(t, short)
	calls := func(name, body string) {
		script(t, dir, name, `echo "$(basename $0) $1 $2" >>`+dir+"/.calls\n"+body)
	}
	const works = `[ $1 = off ] || { echo off; exit 2; }`
	calls("10-other", "exit 3")
	calls("20-broken", "exit 1")
	calls("30-lies", "")
	calls("40-works", works)
	calls("50-unused", works)
	write(t, dir+"/15-readable", "", 0o644)
	h.limits.Settle = time.Millisecond

	r := h.Off(t.Context(), Target{Host: "h1"})
	if !r.Proven || r.Hook != "40-works" || !r.Started {
		t.Errorf("got %+v", r)
	}
	want := "10-other off h1\n20-broken off h1\n30-lies off h1\n30-lies status h1\n40-works off h1\n40-works status h1"
	if got := read(dir + "/.calls"); got != want {
		t.Errorf("the calls were\n%s\nwant\n%s", got, want)
	}
	var kept []string
	for _, c := range r.Calls {
		kept = append(kept, c.Hook+" "+string(c.Action)+" h1")
	}
	if got := strings.Join(kept, "\n"); got != strings.TrimPrefix(want, "10-other off h1\n") {
		t.Errorf("the result contains the calls\n%s", got)
	}

	// A result that is not proven names the reason of each hook, and the hooks that were not called.
	write(t, dir+"/40-works", "", 0o644)
	write(t, dir+"/50-unused", "", 0o777)
	r = h.Off(t.Context(), Target{Host: "h1"})
	for _, part := range []string{`hook "20-broken": off failed`, `hook "30-lies": off succeeded, but`, `hook "40-works" is not used: `, "is not executable", `hook "50-unused" is not used: other users can write`} {
		if !strings.Contains(r.Reason, part) || r.Proven {
			t.Errorf("no %q in %q", part, r.Reason)
		}
	}
	if strings.Contains(r.Reason, "10-other") {
		t.Errorf("a hook for other hosts is in %q", r.Reason)
	}
}

// TestOneHook calls only the hook that the target names.
func TestOneHook(t *testing.T) {
	h, dir := newHooks(t, short)
	for _, name := range []string{"a", "b"} {
		if err := os.Mkdir(dir+"/"+name+"d", 0o755); err != nil {
			t.Fatal(err)
		}
		script(t, dir, name, power(dir+"/"+name+"d"))
	}

	if r := h.Off(t.Context(), Target{Host: "h1", Hook: "b"}); !r.Proven || r.Hook != "b" || read(dir+"/ad/power") != "" {
		t.Errorf("got %+v", r)
	}
	if r := h.Off(t.Context(), Target{Host: "h1", Hook: "c"}); r.Proven || r.Started || r.Hook != "" || !strings.Contains(r.Reason, `no hook with the name "c"`) {
		t.Errorf("got %+v", r)
	}
}

// TestNoHooks checks the reason if there are no hooks, and if the host has a name that hooks cannot get.
func TestNoHooks(t *testing.T) {
	h, dir := newHooks(t, short)
	if r := h.Off(t.Context(), Target{Host: "h1"}); r.Reason != `cannot prove that host "h1" is off: no fence hook in `+dir+` serves this host` || r.Started || r.Hook != "" {
		t.Errorf("got %+v", r)
	}

	script(t, dir, "bmc", power(dir))
	for host, want := range map[string]string{"": "has no name", "-f": "begins with a hyphen", "h 1": "a space", "h\n1": "control character", strings.Repeat("h", 300): "300 bytes"} {
		for _, call := range []func(context.Context, Target) Result{h.Off, h.On, h.Status} {
			if r := call(t.Context(), Target{Host: host}); r.Started || r.Done || len(r.Calls) > 0 || !strings.Contains(r.Reason, want) {
				t.Errorf("host %.10q: %+v", host, r)
			}
		}
	}
}

// TestStatusAndOn checks the two other actions with a host that is switched off and on again.
func TestStatusAndOn(t *testing.T) {
	h, dir := newHooks(t, short)
	script(t, dir, "10-other", "exit 3")
	script(t, dir, "20-bmc", power(dir))
	script(t, dir, "30-fails", `[ ! -e `+dir+`/.broken ] || { echo broken; exit 1; }`)
	target := Target{Host: "h1"}
	status := func(want Power) {
		t.Helper()
		r := h.Status(t.Context(), target)
		if r.Power != want || !r.Done || r.Started || r.Proven || r.Reason != fmt.Sprintf(`the status of host "h1" is %s`, want) || len(r.Calls) != 2 {
			t.Errorf("got %+v", r)
		}
	}

	status(PowerOn)
	if r := h.Off(t.Context(), target); !r.Proven {
		t.Errorf("got %+v", r)
	}
	status(PowerOff)
	write(t, dir+"/.broken", "", 0o644)
	status(PowerOff)
	if r := h.On(t.Context(), target); r.Done || !r.Started || r.Proven || !strings.Contains(r.Reason, `cannot switch host "h1" on: hook "30-fails": on failed with exit status 1: broken`) {
		t.Errorf("got %+v", r)
	}
	status(PowerOn)
	if err := os.Remove(dir + "/.broken"); err != nil {
		t.Fatal(err)
	}
	if r := h.On(t.Context(), target); !r.Done || !r.Started || r.Reason != `host "h1" is switched on` {
		t.Errorf("got %+v", r)
	}

	script(t, dir, "20-bmc", "exit 1")
	write(t, dir+"/.broken", "", 0o644)
	if r := h.Status(t.Context(), target); r.Power != PowerUnknown || r.Done || !strings.Contains(r.Reason, `cannot find out whether host "h1" is off: hook "20-bmc": status failed`) {
		t.Errorf("got %+v", r)
	}
	script(t, dir, "20-bmc", "exit 3")
	script(t, dir, "30-fails", "exit 3")
	if r := h.Status(t.Context(), target); r.Power != "" || r.Hook != "" || r.Done || !strings.Contains(r.Reason, "serves this host") {
		t.Errorf("got %+v", r)
	}
}

// TestEnvironment checks that a hook gets two arguments, no input, and only the variables for hooks.
func TestEnvironment(t *testing.T) {
	t.Setenv("VOLAGENT_TOKEN", "S3CRET")
	t.Setenv("NOTIFY_SOCKET", "S3CRET")
	h, dir := newHooks(t, short)
	script(t, dir, "bmc", `for a; do echo "arg:$a"; done; echo "input:$(cat)"; pwd; env`)

	r := h.Status(t.Context(), Target{Host: "h1", MachineID: "m", DMIUUID: "d", Reason: "two\nlines\x1b$(id)" + strings.Repeat("x", 3000)})
	out := "\n" + r.Calls[0].Output + "\n"
	for _, line := range []string{"arg:status\narg:h1\ninput:\n/", "VOLAGENT_HOST=h1", "VOLAGENT_MACHINE_ID=m", "VOLAGENT_DMI_UUID=d", `VOLAGENT_REASON=two lines\x1b$(id)xxx`, "HOME=/root", "LC_ALL=C"} {
		if !strings.Contains(out, "\n"+line) {
			t.Errorf("no %q in %q", line, out)
		}
	}
	if strings.Contains(out, "S3CRET") || len(out) > 2000 {
		t.Errorf("the hook gets %q", out)
	}
}

// TestOutputOfHook calls a hook that prints 1 MB and control characters.
func TestOutputOfHook(t *testing.T) {
	h, dir := newHooks(t, short)
	script(t, dir, "bmc", `head -c 1000000 /dev/zero | tr '\0' x; head -c 1000000 /dev/zero | tr '\0' y >&2
printf '\n\033[31mred\033[0m\n' | tee /dev/stderr; [ $1 = off ] || { echo off; exit 2; }`)
	r := h.Off(t.Context(), Target{Host: "h1"})
	if !r.Proven || len(r.Calls) != 2 {
		t.Fatalf("got %+v", r)
	}
	for _, c := range r.Calls {
		if !strings.Contains(c.Output, `\x1b[31mred\x1b[0m`) || len(c.Output) > maxOutput+3 || strings.Contains(c.Output, "\x1b") {
			t.Errorf("%s printed %.40q…", c.Action, c.Output)
		}
	}
}

// TestProcessesEnd checks that no process of a hook's group remains, however the hook ends.
func TestProcessesEnd(t *testing.T) {
	for name, c := range map[string]struct {
		body   string
		cancel bool
		reason string
	}{
		"hook that hangs":                {`sleep 1000 & echo $! >$d/child; trap '' TERM INT HUP; wait`, false, "did not end within 300ms"},
		"hook whose caller gives up":     {`sleep 1000 & echo $! >$d/child; wait`, true, "the request was cancelled"},
		"hook that leaves a process":     {`sleep 1000 & echo $! >$d/child; exit 1`, false, "exit status 1"},
		"hook that leaves a quiet child": {`sleep 1000 >/dev/null 2>&1 & echo $! >$d/child; exit 1`, false, "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			limits := Limits{Off: 300 * time.Millisecond}
			if c.cancel {
				limits.Off = time.Minute
			}
			h, dir := newHooks(t, limits.or(short))
			script(t, dir, "bmc", "d="+dir+"\n"+c.body)
			script(t, dir, "second", "exit 1")
			killAtEnd(t, dir+"/child")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancel {
				go func() {
					for read(dir+"/child") == "" && ctx.Err() == nil {
						<-time.After(time.Millisecond)
					}
					cancel()
				}()
			}

			began := time.Now()
			r := h.Off(ctx, Target{Host: "h1"})
			if took := time.Since(began); took > soon || r.Proven || !r.Started || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("after %s: %+v", took, r)
			}
			if got := strings.Contains(r.Reason, "second"); got == c.cancel {
				t.Errorf("the reason is %q", r.Reason)
			}
			until(t, "the end of the child", func() bool { return ended(dir + "/child") })
		})
	}
}

// TestDaemon calls a hook that leaves a daemon in a session of its own. The daemon holds the output of
// the hook open, and must not delay the caller.
func TestDaemon(t *testing.T) {
	h, dir := newHooks(t, short)
	script(t, dir, "bmc", `case $1 in
off) setsid sh -c 'echo $$ >`+dir+`/daemon; exec sleep 1000' & until [ -s `+dir+`/daemon ]; do :; done;;
status) echo off; exit 2;; esac`)
	killAtEnd(t, dir+"/daemon")

	began := time.Now()
	r := h.Off(t.Context(), Target{Host: "h1"})
	if took := time.Since(began); took > soon || !r.Proven {
		t.Errorf("after %s: %+v", took, r)
	}
	if ended(dir + "/daemon") {
		t.Error("the daemon has ended, so the test has shown nothing")
	}
}

// TestCancelled checks that nothing is started for a caller that has given up already.
func TestCancelled(t *testing.T) {
	h, dir := newHooks(t, short)
	script(t, dir, "bmc", power(dir))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, call := range []func(context.Context, Target) Result{h.Off, h.On, h.Status} {
		if r := call(ctx, Target{Host: "h1"}); r.Started || r.Done || len(r.Calls) > 0 || !strings.Contains(r.Reason, "the request was cancelled") {
			t.Errorf("got %+v", r)
		}
	}
}

// TestFenceAgent switches a host off through a fence agent that reads its options from its input. The
// password must appear neither in the arguments and the environment, nor in the result.
func TestFenceAgent(t *testing.T) {
	h, dir := newHooks(t, short)
	elsewhere := t.TempDir()
	script(t, elsewhere, "fence_x", `d=`+elsewhere+`
cat >$d/input; tr '\0' '\n' </proc/$$/cmdline >$d/cmdline; tr '\0' '\n' </proc/$$/environ >$d/environ
echo "Parse error: Ignoring unknown option '$(grep ^passwd $d/input)'" >&2
case $(sed -n 's/^action=//p' $d/input) in
off) touch $d/is-off; echo Success: Powered OFF;;
on) rm $d/is-off; echo Success: Powered ON;;
status) [ -e $d/is-off ] && { echo Status: OFF; exit 2; }; echo Status: ON;;
esac`)
	write(t, elsewhere+"/password", "S3CRET with spaces\n", 0o600)
	write(t, dir+"/bmc.agent", "agent = "+elsewhere+"/fence_x\npasswd = file:"+elsewhere+"/password\n[h1]\nip = 192.0.2.1\n", 0o600)
	target := Target{Host: "h1", Reason: "test"}

	if r := h.Status(t.Context(), target); r.Power != PowerOn {
		t.Errorf("got %+v", r)
	}
	r := h.Off(t.Context(), target)
	if !r.Proven || r.Hook != "bmc.agent" || len(r.Calls) != 2 {
		t.Errorf("got %+v", r)
	}
	if want := "passwd=S3CRET with spaces\nip=192.0.2.1\nnodename=h1\naction=status"; read(elsewhere+"/input") != want {
		t.Errorf("the input was %q", read(elsewhere+"/input"))
	}
	if got := read(elsewhere + "/cmdline"); got != "/bin/sh\n"+elsewhere+"/fence_x" {
		t.Errorf("the arguments were %q", got)
	}
	if got := read(elsewhere + "/environ"); !strings.Contains(got, "VOLAGENT_HOST=h1") || strings.Contains(got, "S3CRET") {
		t.Errorf("the environment was %q", got)
	}
	if got := fmt.Sprintf("%+v %s", r, r.Output()); strings.Contains(got, "S3CRET") || !strings.Contains(got, "'passwd=***'") {
		t.Errorf("the result is %s", got)
	}
	if r := h.On(t.Context(), target); !r.Done {
		t.Errorf("got %+v", r)
	}

	// The agent has no section for this host.
	if r := h.Off(t.Context(), Target{Host: "h2"}); r.Started || r.Hook != "" || !strings.Contains(r.Reason, "serves this host") {
		t.Errorf("got %+v", r)
	}
}

// TestInputNotRead calls a fence agent that ends without reading a long input.
func TestInputNotRead(t *testing.T) {
	h, dir := newHooks(t, short)
	elsewhere := t.TempDir()
	script(t, elsewhere, "fence_x", "echo no; exit 1")
	write(t, dir+"/bmc.agent", "agent = "+elsewhere+"/fence_x\n[h1]\nx = "+strings.Repeat("x", 200_000)+"\n", 0o600)
	if r := h.Off(t.Context(), Target{Host: "h1"}); r.Proven || !r.Started || !strings.Contains(r.Reason, "exit status 1: no") {
		t.Errorf("got %.300s", r.Reason)
	}
}

// dyingAgent is a variable that makes the test binary play an agent that is killed during an off.
const dyingAgent = "FENCEHOOK_TEST_DYING_AGENT"

// dieWithHook calls the hooks of a directory, and never returns while the hook runs.
func dieWithHook(dir string) {
	h := New(dir, Limits{Off: time.Minute})
	h.trust.uid = uint32(os.Getuid())
	_ = h.Off(context.Background(), Target{Host: "h1"})
}

// TestAgentDies kills the agent during an off. The hook must not switch the host off later.
func TestAgentDies(t *testing.T) {
	_, dir := newHooks(t, short)
	script(t, dir, "bmc", `echo $$ >`+dir+`/child; while :; do sleep 0.1; done`)
	killAtEnd(t, dir+"/child")
	agent := exec.Command("/proc/self/exe")
	agent.Env = append(os.Environ(), dyingAgent+"="+dir)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = agent.Process.Kill() }()

	until(t, "the start of the hook", func() bool { return read(filepath.Join(dir, "child")) != "" })
	if ended(dir + "/child") {
		t.Fatal("the hook has ended")
	}
	_ = agent.Process.Kill()
	_ = agent.Wait()
	until(t, "the end of the hook", func() bool { return ended(dir + "/child") })
}
