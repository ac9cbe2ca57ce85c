package cluster_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csitest/san"
)

// accessMode describes the use of a volume by three hosts in an access mode.
type accessMode struct {
	mode    call.AccessMode
	hosts   int    // how many hosts may have the volume at the same time
	writers int    // how many of these may write; the others claim the volume with --read-only
	again   string // the refusal of a second claim on the same host, or empty if the host may have it
}

// accessModes contains each access mode.
var accessModes = []accessMode{
	{call.SingleNodeReaderOnly, 1, 0, "is in use in mode"},
	{call.SingleNodeWriter, 1, 1, "is in use in mode"},
	{call.SingleNodeSingleWriter, 1, 1, "is in use in mode"},
	{call.SingleNodeMultiWriter, 1, 1, ""},
	{call.MultiNodeReaderOnly, 3, 0, ""},
	{call.MultiNodeSingleWriter, 3, 1, "is in use in mode"},
	{call.MultiNodeMultiWriter, 3, 3, ""},
}

// modeDrivers are the drivers with which the tests use each access mode.
var modeDrivers = map[string]san.Config{
	"attach and stage": {Attach: true, Stage: true, MultiWriter: true},
	"attach":           {Attach: true},
	"node only":        {NodeOnly: true, Stage: true, MultiWriter: true},
}

// TestAccessModes checks that the tests know each access mode that a volume can have.
func TestAccessModes(t *testing.T) {
	var tested []call.AccessMode
	for _, m := range accessModes {
		tested = append(tested, m.mode)
	}
	if diff := gocmp.Diff(call.AccessModes, tested); diff != "" {
		t.Errorf("the tests do not use each access mode of the project (-has +tested):\n%s", diff)
	}
}

// modeRig is a rig whose volumes are file systems or block devices.
type modeRig struct {
	*rig
	driver     san.Config
	attachment call.AttachmentMode
}

// eachModeRig runs a test with each driver, and with file systems and block devices.
func eachModeRig(t *testing.T, test func(r modeRig)) {
	t.Helper()
	for name, driver := range modeDrivers {
		for _, attachment := range []call.AttachmentMode{call.FileSystem, call.BlockDevice} {
			t.Run(name+" "+string(attachment), func(t *testing.T) {
				t.Parallel()
				test(modeRig{newRig(t, 1, 3, driver), driver, attachment})
			})
		}
	}
}

// TestModes claims a volume on three hosts in each access mode, as a file system and as a block
// device. Only the permitted hosts get it, and the others wait. The SAN sees the right mode, and the
// writes of the right hosts. (I1)
func TestModes(t *testing.T) {
	eachModeRig(t, func(r modeRig) {
		for _, m := range accessModes {
			id := "v-" + string(m.mode)
			r.add(id, m)
			r.use(id, m)
			if m.writers == 1 && m.hosts > 1 {
				r.changeWriter(id, m)
			}
			r.awaitAttached(id)
		}
	})
}

// use claims a volume on all hosts at once, and lets the hosts that must wait have it in turn.
func (r modeRig) use(id string, m accessMode) {
	r.t.Helper()
	text := fromSAN
	var attached []string
	waiting := make(chan answered, len(r.hosts))
	for i, h := range r.hosts {
		name, writes := fmt.Sprintf("h%d", i+1), i < m.writers || m.hosts == 1 && m.writers == 1
		if i >= m.hosts {
			r.claimLater(waiting, h, id, m, writes)
			awaitRefusalOf(h, id, `held by host "h1" in mode `+string(m.mode))
			r.expectAttached(id, attached...)
			continue
		}

		path := claim(h, id, "web", claimFlags(m, writes)...)
		attached = append(attached, r.attachmentOf(name, m, writes))
		r.expectAttached(id, attached...)
		text = r.checkData(id, path, text, name, writes)
		r.claimAgain(h, id, m, writes)
		r.expectAttached(id, attached...)
	}

	r.hosts[0].Volctl("volume", "detach", id, "web")
	for range len(r.hosts) - m.hosts {
		got := <-waiting
		if got.Code != 0 {
			r.t.Fatalf("%s: the claim of %s ended with %d: %s", id, got.name, got.Code, got.Err)
		}
		r.expectAttached(id, r.attachmentOf(got.name, m, m.writers > 0))
		text = r.checkData(id, strings.TrimSpace(got.Out), text, got.name, m.writers > 0)
		got.host.Volctl("volume", "detach", id, "web")
	}
	for _, h := range r.hosts[1:m.hosts] {
		h.Volctl("volume", "detach", id, "web")
	}

	wrote := []string{"h1", "h2", "h3"}
	if m.hosts > 1 || m.writers == 0 {
		wrote = wrote[:m.writers]
	}
	r.expectWriters(id, wrote...)
}

// changeWriter moves the right to write of a volume with one writer to a host that reads.
func (r modeRig) changeWriter(id string, m accessMode) {
	r.t.Helper()
	a, b, c := r.hosts[0], r.hosts[1], r.hosts[2]
	claim(a, id, "web")
	claim(b, id, "reader", "--read-only")
	claim(c, id, "reader", "--read-only")
	b.ExpectExit(4, `this host holds volume "`+id+`" as a reader`, "volume", "claim", id, "--alloc", "web", "--timeout", "1s")
	b.Volctl("volume", "detach", id, "reader")
	b.ExpectExit(5, `held by host "h1"`, "volume", "claim", id, "--alloc", "web", "--timeout", "1s")
	b.Await("the end of the claim", func() bool { return !strings.Contains(b.Volctl("claim", "list"), id) })

	waiting := make(chan answered, 1)
	r.claimLater(waiting, b, id, m, true)
	awaitRefusalOf(b, id, `held by host "h1"`)
	r.expectAttached(id, r.attachmentOf("h1", m, true), r.attachmentOf("h3", m, false))
	a.Volctl("volume", "detach", id, "web")
	if got := <-waiting; got.Code != 0 {
		r.t.Fatalf("%s: the claim of h2 ended with %d: %s", id, got.Code, got.Err)
	}
	r.expectAttached(id, r.attachmentOf("h2", m, true), r.attachmentOf("h3", m, false))
	b.Volctl("volume", "detach", id, "web")
	c.Volctl("volume", "detach", id, "reader")
}

// TestModeInForce claims a volume in an access mode that another claim excludes. The claim is refused on
// the host that has the other claim, and waits on another host. It succeeds after the last hold in the
// other mode has ended.
func TestModeInForce(t *testing.T) {
	eachModeRig(t, func(r modeRig) {
		for i, m := range accessModes {
			id := "v-" + string(m.mode)
			r.add(id, accessModes...)
			r.changeMode(id, m, accessModes[(i+1)%len(accessModes)])
			r.expectOneMode(id)
		}
	})
}

// changeMode claims a volume in one mode on the first host and, if the mode permits that, on the third
// host. It then claims the volume in another mode.
func (r modeRig) changeMode(id string, from, to accessMode) {
	r.t.Helper()
	a, b, c := r.hosts[0], r.hosts[1], r.hosts[2]
	other := append([]string{"volume", "claim", id, "--alloc", "other", "--timeout", "1s"}, claimFlags(to, to.writers > 0)...)
	claim(a, id, "web", claimFlags(from, from.writers > 0)...)
	attached := []string{r.attachmentOf("h1", from, from.writers > 0)}
	if from.hosts > 1 {
		claim(c, id, "web", claimFlags(from, from.writers > 1)...)
		attached = append(attached, r.attachmentOf("h3", from, from.writers > 1))
	}

	a.ExpectExit(4, fmt.Sprintf("claimed in mode %s; %s must wait until it is free", from.mode, to.mode), other...)
	waits := fmt.Sprintf(`volume "%s" is used in mode %s by host h1`, id, from.mode)
	b.ExpectExit(5, waits, other...)
	r.expectAttached(id, attached...)

	waiting := make(chan answered, 1)
	r.claimLater(waiting, b, id, to, to.writers > 0)
	awaitRefusalOf(b, id, waits)
	a.Volctl("volume", "detach", id, "web")
	if from.hosts > 1 {
		r.awaitAttached(id, attached[1])
		a.ExpectExit(5, fmt.Sprintf("is used in mode %s by host h3", from.mode), other...)
		r.expectWaiting(waiting)
		c.Volctl("volume", "detach", id, "web")
	}
	if got := <-waiting; got.Code != 0 {
		r.t.Fatalf("%s: the claim in mode %s ended with %d: %s", id, to.mode, got.Code, got.Err)
	}
	r.expectAttached(id, r.attachmentOf("h2", to, to.writers > 0))
	b.Volctl("volume", "detach", id, "web")

	claim(b, id, "web", claimFlags(from, from.writers > 0)...)
	r.expectAttached(id, r.attachmentOf("h2", from, from.writers > 0))
	b.Volctl("volume", "detach", id, "web")
	r.awaitAttached(id)
}

// fromSAN is the text that a volume contains before the first host uses it.
const fromSAN = "from the SAN"

// add adds a disk with a text to the SAN, and registers it as a shared volume with some access modes.
func (r modeRig) add(id string, modes ...accessMode) {
	r.t.Helper()
	var all []string
	for _, m := range modes {
		all = append(all, fmt.Sprintf("{access_mode: %s, attachment_mode: %s}", m.mode, r.attachment))
	}
	r.share(id, "capabilities: ["+strings.Join(all, ", ")+"]")

	disks := r.san.Disks()
	d := disks[slices.IndexFunc(disks, func(d san.Disk) bool { return d.ID == "disk-"+id })]
	r.hosts[0].Must(os.WriteFile(filepath.Join(d.Dir, "text"), []byte(fromSAN), 0o600))
	image, err := os.OpenFile(d.Image, os.O_WRONLY, 0)
	r.hosts[0].Must(err)
	_, err = image.WriteAt([]byte(fromSAN), 0)
	r.hosts[0].Must(cmp.Or(err, image.Close()))
}

// claimFlags returns the flags of a claim in a mode.
func claimFlags(m accessMode, writes bool) []string {
	flags := []string{"--access-mode", string(m.mode)}
	if !writes {
		flags = append(flags, "--read-only")
	}
	return flags
}

// answered is the result of a claim on a host.
type answered struct {
	harness.Result
	host *harness.Host
	name string
}

// claimLater claims a volume on a host in the background, and sends the result.
func (r modeRig) claimLater(results chan<- answered, h *harness.Host, id string, m accessMode, writes bool) {
	args := append([]string{"volume", "claim", id, "--alloc", "web", "--timeout", "90s"}, claimFlags(m, writes)...)
	name := fmt.Sprintf("h%d", slices.Index(r.hosts, h)+1)
	go func() { results <- answered{h.Try(args...), h, name} }()
}

// claimAgain makes a second claim of the same kind on a host, and detaches it.
func (r modeRig) claimAgain(h *harness.Host, id string, m accessMode, writes bool) {
	r.t.Helper()
	again := append([]string{"volume", "claim", id, "--alloc", "again"}, claimFlags(m, writes)...)
	if permitted := m.again == "" || !writes && m.hosts > 1; !permitted {
		h.ExpectExit(4, m.again, again...)
		return
	}
	h.Volctl(again...)
	h.Volctl("volume", "detach", id, "again")
}

// checkData checks the text that a host reads from a volume at path. It then writes another text,
// which must fail if the host may only read. It returns the text that the volume has after that.
func (r modeRig) checkData(id, path, has, host string, writes bool) string {
	r.t.Helper()
	text := "from " + host
	reading, writing := `cat "$1/text"`, `printf %s "$2" > "$1/text"`
	if r.attachment == call.BlockDevice {
		reading = `dd if="$1" bs=4096 count=1 iflag=direct status=none | tr -d '\0'`
		writing = `printf %s "$2" | dd of="$1" bs=4096 conv=sync,notrunc,fsync oflag=direct status=none`
	}

	out, err := exec.Command("sh", "-c", reading, "sh", path).CombinedOutput()
	if got := string(out); got != has || err != nil {
		r.t.Errorf("%s: host %s reads %q, want %q (%v)", id, host, got, has, err)
	}
	out, err = exec.Command("sh", "-c", writing, "sh", path, text).CombinedOutput()
	switch {
	case writes && err != nil:
		r.t.Errorf("%s: host %s cannot write: %v: %s", id, host, err, out)
	case !writes && err == nil:
		r.t.Errorf("%s: host %s writes, and has the volume for reading only", id, host)
	}
	if writes {
		return text
	}
	return has
}

// attachmentOf returns how the SAN shows the attachment of a volume to a host in an access mode.
func (r modeRig) attachmentOf(host string, m accessMode, writes bool) string {
	mode := strings.ReplaceAll(strings.ToUpper(string(m.mode)), "-", "_")
	if !r.driver.MultiWriter && (m.mode == call.SingleNodeSingleWriter || m.mode == call.SingleNodeMultiWriter) {
		mode = "SINGLE_NODE_WRITER" // CSI knows the two modes only with SINGLE_NODE_MULTI_WRITER
	}
	return fmt.Sprintf("%s %s writable %t", host, mode, writes)
}

// attachments returns how the SAN shows the attachments of a volume.
func (r modeRig) attachments(id string) (all []string) {
	for _, a := range r.san.Attachments() {
		if a.Volume == "disk-"+id {
			all = append(all, fmt.Sprintf("%s %s writable %t", a.Node, a.Mode, a.Writable))
		}
	}
	return all
}

// expectAttached checks the attachments of a volume.
func (r modeRig) expectAttached(id string, want ...string) {
	r.t.Helper()
	if diff := gocmp.Diff(want, r.attachments(id)); diff != "" {
		r.t.Errorf("%s: the SAN has other attachments (-want +has):\n%s", id, diff)
	}
}

// awaitAttached waits until a volume has the given attachments.
func (r modeRig) awaitAttached(id string, want ...string) {
	r.t.Helper()
	r.hosts[0].Await(fmt.Sprintf("the attachments %v of %s", want, id), func() bool { return slices.Equal(r.attachments(id), want) })
}

// expectWriters checks which hosts have written to a volume.
func (r modeRig) expectWriters(id string, want ...string) {
	r.t.Helper()
	var wrote []string
	for _, e := range r.san.Writes("disk-" + id) {
		wrote = append(wrote, e.Node)
	}
	slices.Sort(wrote)
	if wrote = slices.Compact(wrote); !slices.Equal(wrote, want) {
		r.t.Errorf("%s: the hosts %v have written, want %v", id, wrote, want)
	}
}

// expectWaiting checks that a claim in the background has not ended.
func (r modeRig) expectWaiting(results <-chan answered) {
	r.t.Helper()
	select {
	case got := <-results:
		r.t.Fatalf("the claim of %s ended with %d: %s%s", got.name, got.Code, got.Out, got.Err)
	default:
	}
}

// expectOneMode checks that all hosts that had a volume at the same time had it in the same mode.
func (r modeRig) expectOneMode(id string) {
	r.t.Helper()
	modes := map[string]string{} // by attachment
	for _, e := range r.san.Events() {
		switch {
		case e.Volume != "disk-"+id:
		case e.Kind == san.KindDetach:
			delete(modes, e.Attachment)
		case e.Kind == san.KindAttach:
			modes[e.Attachment] = e.Mode
			for other, mode := range modes {
				if mode != e.Mode {
					r.t.Errorf("%s is attached as %s beside %s, which is %s", e.Attachment, e.Mode, other, mode)
				}
			}
		}
	}
}
