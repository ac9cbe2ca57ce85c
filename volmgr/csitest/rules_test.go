package csitest

import (
	"context"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// allRules lists the rules for callers. It omits RuleControl, which is about the control file.
var allRules = []Rule{RuleDeadline, RuleOffered, RuleRequired, RuleSize, RulePath, RuleCapability, RuleSecrets, RuleVolumeContext, RulePublishContext,
	RuleNode, RuleInFlight, RuleOrder, RuleStagingPath, RuleStagingDir, RuleTarget, RuleMode, RuleOffline, RuleToken, RuleTopology}

// broken is one way to break a rule. The last of its calls breaks the rule.
type broken struct {
	rule Rule
	cfg  Config // without Base, which TestRules sets
	do   func(*bench)
}

// brokenRules lists ways to break rules. The answers of the calls do not matter, because the test
// checks only the journal.
var brokenRules = map[string]broken{
	"no deadline": {RuleDeadline, full, func(b *bench) {
		_, _ = csi.NewIdentityClient(b.conn).Probe(context.WithoutCancel(b.ctx()), &csi.ProbeRequest{})
	}},
	"a call that is not offered": {RuleOffered, Config{AnyVolume: true}, func(b *bench) { b.code(codes.Unimplemented, b.attach("a")) }},
	"a service that is not there": {RuleOffered, Config{NoController: true}, func(b *bench) {
		_, _ = csi.NewControllerClient(b.conn).ValidateVolumeCapabilities(b.ctx(), &csi.ValidateVolumeCapabilitiesRequest{})
	}},
	"a call that no plugin offers here": {RuleOffered, full, func(b *bench) {
		_, _ = csi.NewControllerClient(b.conn).ListVolumes(b.ctx(), &csi.ListVolumesRequest{})
	}},
	"readonly attachment": {RuleOffered, Config{Attach: true, AnyVolume: true}, func(b *bench) {
		_, _ = csi.NewControllerClient(b.conn).ControllerPublishVolume(b.ctx(),
			&csi.ControllerPublishVolumeRequest{VolumeId: "a", NodeId: "node-1", VolumeCapability: writer(), Readonly: true})
	}},
	"a clone": {RuleOffered, full, func(b *bench) {
		_, _ = csi.NewControllerClient(b.conn).CreateVolume(b.ctx(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer()},
			VolumeContentSource: volumeSource("b")})
	}},
	"no volume id": {RuleRequired, full, func(b *bench) { _ = b.detach("") }},
	"no name": {RuleRequired, full, func(b *bench) {
		createWith(b, &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{writer()}})
	}},
	"no capability":    {RuleRequired, full, func(b *bench) { createWith(b, &csi.CreateVolumeRequest{Name: "a"}) }},
	"no stage path":    {RuleRequired, full, func(b *bench) { stageWith(b, func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "" }) }},
	"publish unstaged": {RuleRequired, full, func(b *bench) { publishWith(b, func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }) }},
	"a strange range":  {RuleRequired, full, func(b *bench) { createWith(b, rangeRequest(2, 1)) }},
	"an empty range":   {RuleRequired, full, func(b *bench) { createWith(b, rangeRequest(0, 0)) }},
	"a long id":        {RuleSize, full, func(b *bench) { _ = b.detach(strings.Repeat("x", 129)) }},
	"a long path":      {RuleSize, full, func(b *bench) { _ = b.unpublish("a", strings.Repeat("x", 129)) }},
	"a large map": {RuleSize, full, func(b *bench) {
		publishWith(b, func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{"k": strings.Repeat("x", 4096)}
		})
	}},
	"a relative path": {RulePath, full, func(b *bench) { relativeUnpublish(b) }},
	"no access mode":  {RuleCapability, full, func(b *bench) { b.must(attachAs(b, asMount(0))) }},
	"no access type":  {RuleCapability, full, func(b *bench) { b.must(attachAs(b, &csi.VolumeCapability{AccessMode: writer().AccessMode})) }},
	"an unknown mode": {RuleCapability, Config{Attach: true, AnyVolume: true}, func(b *bench) {
		b.must(attachAs(b, asMount(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER)))
	}},
	"staged otherwise": {RuleCapability, full, func(b *bench) {
		publishWith(b, func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability = asMount(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
		})
	}},
	"no secrets":         {RuleSecrets, Config{CreateDelete: true, WantSecrets: map[string]string{"k": "s3cret"}}, func(b *bench) { deleteWith(b, nil) }},
	"another secret":     {RuleSecrets, Config{CreateDelete: true, WantSecrets: map[string]string{"k": "s3cret"}}, func(b *bench) { deleteWith(b, map[string]string{"k": "x"}) }},
	"no volume context":  {RuleVolumeContext, Config{Attach: true, Volumes: []string{"a"}, VolumeContext: map[string]string{"k": "v"}}, func(b *bench) { b.must(b.attach("a")) }},
	"a created context":  {RuleVolumeContext, full, func(b *bench) { b.must(createdButForgotten(b)) }},
	"no publish context": {RulePublishContext, full, func(b *bench) { publishWith(b, func(r *csi.NodePublishVolumeRequest) { r.PublishContext = nil }) }},
	"a stale publish context": {RulePublishContext, full, func(b *bench) {
		b.must(b.attach("a"))
		old := b.given("a")
		b.must(b.detach("a"))
		stageWith(b, func(r *csi.NodeStageVolumeRequest) { r.PublishContext = old })
	}},
	"a needless publish context": {RulePublishContext, Config{Stage: true, AnyVolume: true}, func(b *bench) {
		stageWith(b, func(r *csi.NodeStageVolumeRequest) { r.PublishContext = map[string]string{"k": "v"} })
	}},
	"no context of another plugin": {RulePublishContext, Config{NoController: true, Attach: true, Stage: true, AnyVolume: true}, func(b *bench) { _ = b.stage("a") }},
	"another node":                 {RuleNode, full, func(b *bench) { attachTo(b, "node-2") }},
	"detach from another node": {RuleNode, full, func(b *bench) {
		b.must(b.attach("a"))
		_, _ = csi.NewControllerClient(b.conn).ControllerUnpublishVolume(b.ctx(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "a", NodeId: "node-2"})
	}},
	"stage before attach": {RuleOrder, full, func(b *bench) { _ = b.stage("a") }},
	"publish before stage": {RuleOrder, full, func(b *bench) {
		b.must(b.attach("a"))
		b.must(os.Mkdir(b.staging("a"), 0o711))
		_ = b.publish("a", "t")
	}},
	"publish before attach":     {RuleOrder, Config{Attach: true, AnyVolume: true}, func(b *bench) { _ = b.publish("a", "t") }},
	"publish after unstage":     {RuleOrder, full, func(b *bench) { b.up("a"); b.must(b.unstage("a")); _ = b.publish("a", "t") }},
	"unstage while published":   {RuleOrder, full, func(b *bench) { b.up("a", "t"); _ = b.unstage("a") }},
	"detach while staged":       {RuleOrder, full, func(b *bench) { b.up("a"); _ = b.detach("a") }},
	"delete while staged":       {RuleOrder, full, func(b *bench) { b.up("a"); deleteWith(b, nil) }},
	"stats of what is nowhere":  {RuleOrder, full, func(b *bench) { statsAt(b, b.target("t")) }},
	"publish after a bad stage": {RuleOrder, full, publishAfterFailedStage},
	"unstage after an unpublish that failed": {RuleOrder, full, func(b *bench) {
		b.up("a", "t")
		b.inject(Fault{Method: NodeUnpublish, Code: codes.Internal})
		b.code(codes.Internal, b.unpublish("a", "t"))
		_ = b.unstage("a")
	}},
	"another staging path": {RuleStagingPath, full, func(b *bench) {
		b.up("a")
		b.must(os.Mkdir(b.staging("other"), 0o711))
		stageWith(b, func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = b.staging("other") })
	}},
	"the staging path of another": {RuleStagingPath, full, func(b *bench) {
		b.up("b")
		stageWith(b, func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = b.staging("b") })
	}},
	"no staging directory": {RuleStagingDir, full, func(b *bench) {
		b.must(b.attach("a"))
		_, _ = csi.NewNodeClient(b.conn).NodeStageVolume(b.ctx(), b.stageRequest("a"))
	}},
	"no parent of the target": {RuleTarget, full, func(b *bench) { b.up("a"); _ = b.publish("a", "none/t") }},
	"a target that exists":    {RuleTarget, full, func(b *bench) { b.up("a"); b.must(os.Mkdir(b.target("t"), 0o755)); _ = b.publish("a", "t") }},
	"a target of another":     {RuleTarget, full, func(b *bench) { b.up("a", "t"); b.up("b"); _ = b.publish("b", "t") }},
	"unpublish of another":    {RuleTarget, full, func(b *bench) { b.up("a", "t"); _ = b.unpublish("b", "t") }},
	"publish with other options": {RuleTarget, full, func(b *bench) {
		b.up("a", "t")
		publishWith(b, func(r *csi.NodePublishVolumeRequest) { r.Readonly = true })
	}},
	"a second target": {RuleMode, Config{AnyVolume: true}, func(b *bench) { publishAs(b, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER) }},
	"a second reader": {RuleMode, Config{AnyVolume: true}, func(b *bench) { publishAs(b, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY) }},
	"two at once":     {RuleInFlight, full, func(b *bench) { overlapping(b, b) }},
	"topology": {RuleOffered, full, func(b *bench) {
		createWith(b, &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer()}, AccessibilityRequirements: &csi.TopologyRequirement{}})
	}},
	"no topology": {RuleTopology, with(full, inZone), func(b *bench) {
		createWith(b, &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer()}})
	}},
	"another topology than was sent": {RuleTopology, with(full, inZone), func(b *bench) {
		b.inject(Fault{Method: CreateVolume, Code: codes.Internal})
		createAt(b, "a")
		createAt(b, "b")
	}},
	"mutable parameters": {RuleOffered, full, func(b *bench) {
		createWith(b, &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer()}, MutableParameters: map[string]string{"k": "v"}})
	}},
	"a mount group": {RuleCapability, full, func(b *bench) {
		c := writer()
		c.GetMount().VolumeMountGroup = "7"
		b.must(attachAs(b, c))
	}},
	"unstage after an unpublish that nobody waited for": {RuleOrder, full, func(b *bench) {
		b.up("a", "t")
		b.inject(Fault{Method: NodeUnpublish, Delay: 1500 * time.Millisecond})
		_, err := csi.NewNodeClient(b.conn).NodeUnpublishVolume(within(b.t, 500*time.Millisecond),
			&csi.NodeUnpublishVolumeRequest{VolumeId: "a", TargetPath: b.target("t")})
		b.code(codes.DeadlineExceeded, err)
		_, err = AwaitCalls(b.ctx(), b.cfg.JournalPath(), func(cs Calls) bool { return cs[len(cs)-1].Ended() })
		b.must(err)
		_ = b.unstage("a")
	}},
	"two callers":      {RuleInFlight, full, func(b *bench) { second := *b; second.dial(); overlapping(b, &second) }},
	"create and other": {RuleInFlight, full, overlapCreate},
}

// TestRules breaks each rule. The plugin must report this violation and no other.
func TestRules(t *testing.T) {
	tested := map[Rule]bool{}
	rows := maps.Clone(brokenRules)
	maps.Copy(rows, brokenStorageRules)
	for name, row := range rows {
		tested[row.rule] = true
		t.Run(name, func(t *testing.T) {
			b := start(t, row.cfg)
			row.do(b)
			j := b.journal()
			if len(j.Violations) != 1 || j.Violations[0].Rule != row.rule {
				t.Fatalf("got %v, want one of rule %s; calls:\n%s", j.Violations, row.rule, j.Calls)
			}
			v, c := j.Violations[0], j.Calls[len(j.Calls)-1]
			if v.Seq != c.Seq || v.Method != c.Method || v.Words == "" || strings.Contains(v.Words, "s3cret") {
				t.Errorf("violation %+v of call %+v", v, c)
			}
			if mem := b.p.Violations(); len(mem) != 1 || mem[0].Rule != v.Rule {
				t.Errorf("in memory: %v", mem)
			}
		})
	}
	for _, rule := range allRules {
		if !tested[rule] {
			t.Errorf("no test breaks rule %s", rule)
		}
	}
}

func inZone(c *Config) { c.Topology = map[string]string{"zone": "a"} }

func createAt(b *bench, zone string) {
	createWith(b, &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer()},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": zone}}}}})
}

// TestTopologyMayChange checks that a caller may request another topology for a volume name if the
// plugin refused the previous CreateVolume, or if that call created the volume.
func TestTopologyMayChange(t *testing.T) {
	b := start(t, with(full, inZone))
	b.inject(Fault{Method: CreateVolume, Code: codes.InvalidArgument})
	createAt(b, "a")
	createAt(b, "b")
	createAt(b, "a")
	if j := b.journal(); len(j.Violations) != 0 || len(j.Calls.Only(CreateVolume)) != 3 {
		t.Errorf("violations %v of calls\n%s", j.Violations, j.Calls)
	}
}

func createWith(b *bench, r *csi.CreateVolumeRequest) {
	_, _ = csi.NewControllerClient(b.conn).CreateVolume(b.ctx(), r)
}

func rangeRequest(least, most int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer()},
		CapacityRange: &csi.CapacityRange{RequiredBytes: least, LimitBytes: most}}
}

func deleteWith(b *bench, secrets map[string]string) {
	_, _ = csi.NewControllerClient(b.conn).DeleteVolume(b.ctx(), &csi.DeleteVolumeRequest{VolumeId: "a", Secrets: secrets})
}

func statsAt(b *bench, path string) {
	_, _ = csi.NewNodeClient(b.conn).NodeGetVolumeStats(b.ctx(), &csi.NodeGetVolumeStatsRequest{VolumeId: "a", VolumePath: path})
}

// stageWith stages the volume "a" with an edited request. It first calls ControllerPublish if the
// plugin has that call.
func stageWith(b *bench, edit func(*csi.NodeStageVolumeRequest)) {
	if b.cfg.Attach {
		b.must(b.attach("a"))
	}
	b.must(os.MkdirAll(b.staging("a"), 0o711))
	r := b.stageRequest("a")
	edit(r)
	_, _ = csi.NewNodeClient(b.conn).NodeStageVolume(b.ctx(), r)
}

// publishWith publishes the volume "a" at the target "t" with an edited request.
func publishWith(b *bench, edit func(*csi.NodePublishVolumeRequest)) {
	if len(b.journal().Calls) == 0 {
		b.up("a")
	}
	r := b.publishRequest("a", "t")
	edit(r)
	_, _ = csi.NewNodeClient(b.conn).NodePublishVolume(b.ctx(), r)
}

func relativeUnpublish(b *bench) {
	_, _ = csi.NewNodeClient(b.conn).NodeUnpublishVolume(b.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: "a", TargetPath: "x"})
}

func attachAs(b *bench, c *csi.VolumeCapability) error {
	_, err := csi.NewControllerClient(b.conn).ControllerPublishVolume(b.ctx(), &csi.ControllerPublishVolumeRequest{VolumeId: "a", NodeId: "node-1", VolumeCapability: c})
	return err
}

func attachTo(b *bench, node string) {
	_, _ = csi.NewControllerClient(b.conn).ControllerPublishVolume(b.ctx(), &csi.ControllerPublishVolumeRequest{VolumeId: "a", NodeId: node, VolumeCapability: writer()})
}

func createdButForgotten(b *bench) error {
	createWith(b, &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer()}})
	return b.attach("a")
}

func publishAfterFailedStage(b *bench) {
	b.must(b.attach("a"))
	b.inject(Fault{Method: NodeStage, Code: codes.Internal, Effect: EffectDone})
	b.code(codes.Internal, b.stage("a"))
	_ = b.publish("a", "t")
}

// publishAs publishes the volume "a" at two targets with the given mode.
func publishAs(b *bench, mode csi.VolumeCapability_AccessMode_Mode) {
	for _, target := range []string{"t", "u"} {
		r := b.publishRequest("a", target)
		r.StagingTargetPath, r.VolumeCapability = "", asMount(mode)
		_, err := csi.NewNodeClient(b.conn).NodePublishVolume(b.ctx(), r)
		b.must(err)
	}
}

// overlapping makes one call hang and then sends another call for the same volume.
func overlapping(first, second *bench) {
	first.inject(Fault{Method: ControllerPublish, Hang: true})
	done := make(chan error, 1)
	go func() { done <- first.attach("a") }()
	first.await(ControllerPublish)
	_ = second.detach("a")
	first.must(first.cfg.Faults().Clear())
	first.must(<-done)
}

func overlapCreate(b *bench) {
	b.inject(Fault{Method: CreateVolume, Hang: true})
	done := make(chan struct{})
	go func() {
		defer close(done)
		createWith(b, &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{writer()}})
	}()
	b.await(CreateVolume)
	_ = b.detach("a")
	b.must(b.cfg.Faults().Clear())
	<-done
}
