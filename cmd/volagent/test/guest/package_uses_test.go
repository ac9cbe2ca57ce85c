package guest_test

import "strings"

// testUses runs operations that need special capabilities, devices or system calls. The
// restrictions of the packaged service must allow all of these operations.
func (p *packageGuest) testUses() {
	create := func(id string, more ...string) {
		p.t.Helper()
		p.run(append([]string{"volctl", "volume", "create", id, "--plugin", "local"}, more...)...)
	}
	create("owned")
	path := p.run("volctl", "volume", "claim", "owned", "--alloc", "u", "--owner", "none", "--uid", "1234", "--gid", "4321", "--mode", "2770")
	if s := p.run("stat", "-c", "%u %g %a", path); s != "1234 4321 2770" {
		p.t.Errorf("the volume's root is %s", s)
	}
	create("raw", "--size", "16MiB", "--param", "type=image", "--attachment-mode", "block-device")
	path = p.run("volctl", "volume", "claim", "raw", "--alloc", "u", "--owner", "none")
	if s := p.run("sh", "-c", `echo words | dd of="$0" conv=notrunc 2>/dev/null && head -c 5 "$0"`, path); s != "words" {
		p.t.Errorf("the block device reads %q", s)
	}
	// The error must name the process that has the device open, even if the process belongs to
	// another user.
	p.run("systemd-run", "--quiet", "--unit=opener", "sh", "-c", `exec 3<"$0"; exec sleep 7777`, path)
	p.await("the holder", func() bool {
		return p.try("sh", "-c", "ls -l /proc/$(systemctl show -p MainPID --value opener)/fd | grep /raw").Code == 0
	})
	if r := p.try("volctl", "volume", "detach", "raw", "u", "--timeout", "3s"); r.Code == 0 || !strings.Contains(r.Out+r.Err+p.run("volctl", "volume", "status", "raw"), "sleep") {
		p.t.Errorf("detach of a device that is open: exit %d\n%s%s\n%s", r.Code, r.Out, r.Err, p.run("volctl", "volume", "status", "raw"))
	}
	p.run("systemctl", "stop", "opener")
	p.run("volctl", "wait", "--volume", "raw", "--for", "free", "--timeout", "60s")

	// The expansion may fail in this way, because the test machine itself may lack the capability.
	if r := p.try("volctl", "volume", "expand", "image", "48MiB"); r.Code != 0 && !strings.Contains(r.Err, "the driver lacks CAP_SYS_RESOURCE") {
		p.t.Errorf("expand: exit %d\n%s", r.Code, r.Err)
	}
	p.run("volctl", "volume", "detach", "owned", "u")
	for _, id := range []string{"owned", "raw"} {
		p.run("volctl", "volume", "delete", id, "-y", "--confirm="+id)
	}

	p.run("volctl", "state", "backup", "/root/backup")
	// This script sends a request in the same way as docker.
	const ask = `use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new("/run/docker/plugins/csi.sock") or die $!;
		print $s "POST /VolumeDriver.Get HTTP/1.0\r\nContent-Length: 15\r\n\r\n{\"Name\":\"line\"}"; print <$s>`
	if out := p.run("perl", "-e", ask); !strings.Contains(out, `docker has no volume \"line\" here`) {
		p.t.Errorf("docker is told %q", out)
	}
	if out := p.try("journalctl", "-u", "volagent", "-p", "warning", "-o", "cat").Out; strings.Contains(out, "not permitted") || strings.Contains(out, "denied") {
		p.t.Errorf("the agent was kept from something:\n%s", out)
	}
}

// testScraped checks the setting metrics_address in the packaged service. The restrictions of the
// service do not allow the agent to open a TCP socket. If the agent cannot serve metrics, the
// status shows the reason.
func (p *packageGuest) testScraped() {
	good := p.run("cat", "/etc/volagent/volagent.yaml")
	problems := func() string {
		return p.run("volctl", "status", "-o", "go-template={{range .problems}}{{.message}}\n{{end}}")
	}
	at := func(address string) {
		p.write("etc/volagent/volagent.yaml", good+"\nmetrics_address: '"+address+"'\n")
		p.run("systemctl", "restart", "volagent")
	}
	at("192.0.2.1:9187")
	p.await("a problem", func() bool {
		return strings.Contains(problems(), "cannot serve the metrics on 192.0.2.1:9187: listen tcp 192.0.2.1:9187: cannot assign requested address (no interface of this host has it now)")
	})
	for _, address := range []string{"127.0.0.1:9187", "127.0.0.1:80"} {
		at(address)
		_, port, _ := strings.Cut(address, ":")
		p.await("metrics at "+address, func() bool {
			r := p.try("bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/$0 && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && cat <&3`, port)
			return strings.Contains(r.Out, `volagent_build_info{version="1.0.0"} 1`)
		})
		if left := problems(); strings.Contains(left, "metrics") {
			p.t.Errorf("there are still problems: %s", left)
		}
	}
	if left := p.run("sh", "-c", "ls -d /run/volagent/lend-* 2>/dev/null; systemctl list-units --all --no-legend --plain 'volagent-run-*'; true"); left != "" {
		p.t.Errorf("there is left: %s", left)
	}
	p.write("etc/volagent/volagent.yaml", good+"\n")
	p.run("systemctl", "restart", "volagent")
	p.untouched("metrics over TCP")
}
