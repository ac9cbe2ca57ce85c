package cli

import "testing"

const (
	checkedOK     = `{"check":{"check":"name","result":"ok","took_ms":0.02,"said":"nfs.csi.example.com 1"}}` + "\n"
	checkedBroken = `{"check":{"check":"source","result":"broken","took_ms":2011,"said":"the empty\nstaging directory is mounted"}}` + "\n"
)

func TestPluginTest(t *testing.T) {
	f := world()
	f.on["POST /v1/plugins/nfs/test"] = answers(raw(checkedOK + `{"summary":{"driver":"d","version":"2","ok":1}}` + "\n"))
	f.on["POST /v1/plugins/ebs/test"] = answers(raw(checkedOK + checkedBroken + `{"summary":{"driver":"nfs.csi.example.com","version":"1","mounts":"kernel","fs_type":"nfs4","stages":true,"creates":true,"ok":1,"broken":1}}` + "\n"))
	f.on["POST /v1/plugins/s3/test"] = answers(raw(checkedOK + `{"summary":{"ok":1},"error":{"code":"timeout","message":"it was not over"}}` + "\n"))
	f.on["POST /v1/plugins/cut/test"] = answers(raw(checkedOK))
	r := with(t, f)
	const header = "CHECK               RESULT        TOOK     SAID\nname                ok            0s       nfs.csi.example.com 1\n"
	expect(t, r.volctl("plugin", "test", "nfs"), 0, header+"\n1 ok, 0 worked around, 0 broken, 0 skipped\nd 2: no create, no attach, no stage\n", "")
	expectSent(t, f, `POST /v1/plugins/nfs/test {"timeout":"10m0s"}`)
	expect(t, r.volctl("plugin", "test", "ebs"), 1, header+"source              broken        2.01s    the empty staging directory is mounted\n"+
		"\n1 ok, 0 worked around, 1 broken, 0 skipped\nnfs.csi.example.com 1: create, no attach, stage (mounts nothing), kernel mounts of nfs4\n",
		"volctl: plugin \"ebs\" does not meet the agent's requirements: source\nhint: volctl plugin logs ebs\n")
	expect(t, r.volctl("plugin", "test", "ebs", "-q"), 1, "source\n", "does not meet the agent's requirements")
	expect(t, r.volctl("plugin", "test", "s3", "-q"), 5, "", "cannot test plugin \"s3\": it was not over")
	expect(t, r.volctl("plugin", "test", "cut", "-q"), 7, "", "ended the test early")
	f.sent()
	expect(t, r.volctl("plugin", "test", "nfs", "-q", "-kill", "-external-id", "a/b", "-context", "k=v=w", "-secret", "s=file:/f", "-secret", "t=env:E", "-access-mode", "multi-node-multi-writer",
		"-fs-type", "xfs", "-mount-flag", "noatime", "-timeout", "1m"), 0, "", "")
	expectSent(t, f, `POST /v1/plugins/nfs/test {"external_id":"a/b","context":{"k":"v=w"},"secrets":{"s":{"file":"/f"},"t":{"env":"E"}},`+
		`"access_mode":"multi-node-multi-writer","mount_options":{"fs_type":"xfs","mount_flags":["noatime"]},"kill":true,"timeout":"1m0s"}`)
	for _, args := range [][]string{{"-secret", "s=hush"}, {"-secret", "s=vault:x"}, {"-secret", "s"}, {"-context", "a=b"}, {"-param", "a"}, {"-size", "7"}, {"-timeout", "0s"}} {
		expect(t, r.volctl(append([]string{"plugin", "test", "nfs"}, args...)...), 2, "", "volctl: ")
	}
}
