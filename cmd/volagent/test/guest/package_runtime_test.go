package guest_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// runtimeWords is a Perl script that sends a request of docker's volume plugin protocol. The agent
// identifies the runtime by the caller's program. Therefore the test runs the script with a copy of
// perl that has the name of the runtime.
const runtimeWords = `use IO::Socket::UNIX;
my $s = IO::Socket::UNIX->new(Peer => "/run/docker/plugins/csi.sock") or die "no agent: $!";
print $s "POST /$ARGV[0] HTTP/1.0\r\nContent-Length: " . length($ARGV[1]) . "\r\n\r\n$ARGV[1]";
$s->flush; local $/; my $answer = <$s>; $answer =~ s/^.*?\r\n\r\n//s; print $answer;
`

// says sends a request to the agent in the same way as a container runtime, through the socket that
// systemd opened. It returns the answer.
func (p *packageGuest) says(runtime, method string, q map[string]any) (answer map[string]any) {
	p.t.Helper()
	raw, err := json.Marshal(q)
	p.must(err)
	out := p.run("/opt/"+runtime, "/opt/words.pl", method, string(raw))
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer["Err"] != nil {
		p.t.Fatalf("%s: %q, %v", method, out, err)
	}
	return answer
}

// testVolumes checks the packaged agent as a volume plugin of container runtimes. In spite of the
// restrictions of its service, the agent must identify its caller and mount volumes. It must also
// be able to read the mount namespace of a container that has more privileges than the agent.
func (p *packageGuest) testVolumes() {
	p.run("mkdir", "-p", "/opt")
	p.write("opt/words.pl", runtimeWords)
	for _, name := range []string{"dockerd", "podman"} {
		p.run("cp", "/usr/bin/perl", "/opt/"+name)
	}
	if s := p.run("stat", "-c", "%F %a %U:%G", "/run/docker/plugins/csi.sock", "/run/docker/plugins"); s != "socket 600 root:root\ndirectory 755 root:root" {
		p.t.Errorf("the socket and its directory are %q", s)
	}
	p.write("usr/bin/docker", `#!/bin/sh
echo "$*" >>/run/docker-args
[ "$1" != volume ] || echo '[{"Driver":"csi"}]'
`)
	p.run("chmod", "755", "/usr/bin/docker")
	conf := p.run("cat", "/etc/volagent/volagent.yaml")
	p.write("etc/volagent/volagent.yaml", conf+"\nlog_level: trace\n")
	p.run("systemctl", "stop", "volagent.service")
	if a := p.says("dockerd", "Plugin.Activate", nil); fmt.Sprint(a["Implements"]) != "[VolumeDriver]" { // this request starts the agent
		p.t.Errorf("it implements %v", a)
	}
	p.says("dockerd", "VolumeDriver.Create", map[string]any{"Name": "box", "Opts": map[string]string{"plugin": "local"}})
	path := fmt.Sprint(p.says("dockerd", "VolumeDriver.Mount", map[string]any{"Name": "box", "ID": "c0ffee"})["Mountpoint"])
	p.run("mountpoint", "-q", path)
	for runtime, has := range map[string]string{"dockerd": "box", "podman": ""} {
		if got := fmt.Sprint(p.says(runtime, "VolumeDriver.List", nil)); strings.Contains(got, "Name:") != (has != "") || !strings.Contains(got, has) {
			p.t.Errorf("%s has %s", runtime, got)
		}
	}
	p.run("systemd-run", "--quiet", "--unit=box", "unshare", "-m", "--propagation", "private", "sh", "-c", `mount --bind "$0" /mnt && exec sleep 7779`, path)
	p.later("the container is seen", func() bool {
		return strings.Contains(p.try("journalctl", "-u", "volagent", "-o", "cat", "--no-pager").Out, `(sleep) has a mount at`)
	})
	if raw, err := os.ReadFile(filepath.Join(p.root, "run/docker-args")); err == nil {
		p.t.Errorf("docker was asked while a container has it: %s", raw)
	}
	p.run("systemctl", "stop", "box")
	p.later("its claim goes", func() bool { return !strings.Contains(p.run("volctl", "claim", "list"), "box ") })
	if asked := p.run("cat", "/run/docker-args"); !strings.Contains(asked, "ps --all") || !strings.Contains(asked, "volume inspect box") {
		p.t.Errorf("docker was asked %q", asked)
	}
	p.says("dockerd", "VolumeDriver.Remove", map[string]any{"Name": "box"})
	p.run("volctl", "volume", "delete", "box", "-y")
	p.write("etc/volagent/volagent.yaml", conf+"\n")
	p.run("systemctl", "restart", "volagent")
	p.run("rm", "-r", "/usr/bin/docker", "/opt/words.pl", "/opt/dockerd", "/opt/podman")
	p.untouched("volumes of docker's")
}

// later waits until cond returns true. It waits longer than await, because the agent runs some
// checks only every 30 seconds.
func (p *packageGuest) later(what string, cond func() bool) {
	p.t.Helper()
	for end := time.Now().Add(300 * time.Second); !cond(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("did not come true in time: %s\n%s", what, p.try("journalctl", "--no-pager", "-n", "100", "-u", "volagent").Out)
		}
	}
}
