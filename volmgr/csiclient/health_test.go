package csiclient_test

import (
	"context"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/csiclient"
)

// TestHealth checks that the client converts a plugin's health problems to the types of the domain.
// A problem type of a later CSI version must appear as its number.
func TestHealth(t *testing.T) {
	type entry = csi.VolumeHealth_VolumeHealthEntry
	ill := &csi.VolumeHealth{VolumeId: "x", HealthStatuses: []*entry{
		{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "Slow", Message: "one disk\nof two"},
		{Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: "Gone"},
		{Status: csi.VolumeHealthErrorType_DATA_LOSS, Message: strings.Repeat("x", 5000)},
		{Status: 42, Reason: "Multipath", Message: "s3cret"},
		{Status: -1},
		nil,
	}}
	known := call.Health{ExternalID: "x", Entries: []call.Condition{
		{Severity: call.Degraded, Reason: "Slow", Message: "one disk of two"}, {Severity: call.Inaccessible, Reason: "Gone"},
		{Severity: call.DataLoss, Message: strings.Repeat("x", 1021) + "…"}, {Severity: "status 42", Reason: "Multipath", Message: "***"}, {Severity: "status -1"}, {Severity: "status 0"}}}
	f := newFake(t)
	f.answers(map[string]any{
		"NodeGetVolumeHealth":        &csi.NodeGetVolumeHealthResponse{VolumeHealth: ill},
		"ControllerGetVolumeHealth":  &csi.ControllerGetVolumeHealthResponse{VolumeHealth: ill},
		"ControllerListVolumeHealth": &csi.ControllerListVolumeHealthResponse{NextToken: "more", Entries: []*csi.VolumeHealth{ill, nil}},
		"NodeGetStorageHealth": &csi.NodeGetStorageHealthResponse{BackendHealth: []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			{Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "Paths", Message: "one of two"}, {Status: csi.StorageHealthErrorType_STORAGE_UNREACHABLE}, {Status: 9}}},
	})
	c := f.client(t, csiclient.Options{})
	storage, err := call.Do(t.Context(), c, call.StorageHealthRequest{Secrets: s3cret}) // the secret of this call must also be masked in later answers
	want := []call.Condition{{Severity: call.Degraded, Reason: "Paths", Message: "one of two"}, {Severity: call.Inaccessible}, {Severity: "status 9"}}
	if err != nil || !reflect.DeepEqual(storage, want) {
		t.Errorf("storage: got %+v, %v", storage, err)
	}
	f.sent(t, "NodeGetStorageHealth", &csi.NodeGetStorageHealthRequest{Secrets: sentSecret})
	if got, err := call.Do(t.Context(), c, call.NodeHealthRequest{ExternalID: "x", Path: "/t", StagingPath: "/s"}); err != nil || !reflect.DeepEqual(got, known) {
		t.Errorf("node: got %+v, %v", got, err)
	}
	f.sent(t, "NodeGetVolumeHealth", &csi.NodeGetVolumeHealthRequest{VolumeId: "x", VolumePublishPath: "/t", StagingTargetPath: "/s"})
	if got, err := call.Do(t.Context(), c, call.ControllerHealthRequest{ExternalID: "x", Secrets: s3cret}); err != nil || !reflect.DeepEqual(got, known) {
		t.Errorf("controller: got %+v, %v", got, err)
	}
	f.sent(t, "ControllerGetVolumeHealth", &csi.ControllerGetVolumeHealthRequest{VolumeId: "x", Secrets: sentSecret})
	page, err := call.Do(t.Context(), c, call.ListHealthRequest{MaxEntries: 3, Token: "here", Secrets: s3cret})
	if err != nil || !reflect.DeepEqual(page, call.HealthPage{Next: "more", Entries: []call.Health{known, {}}}) {
		t.Errorf("list: got %+v, %v", page, err)
	}
	f.sent(t, "ControllerListVolumeHealth", &csi.ControllerListVolumeHealthRequest{MaxEntries: 3, StartingToken: "here", Secrets: sentSecret})
}

// TestHealthSaysNothing checks that an empty answer counts as a volume without problems.
func TestHealthSaysNothing(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	node, err := call.Do(t.Context(), c, call.NodeHealthRequest{ExternalID: "x"})
	if err != nil || !reflect.DeepEqual(node, call.Health{}) {
		t.Errorf("node: got %+v, %v", node, err)
	}
	if storage, err := call.Do(t.Context(), c, call.StorageHealthRequest{}); err != nil || storage != nil {
		t.Errorf("storage: got %+v, %v", storage, err)
	}
}

// old returns an encoded VolumeCondition, in the field that CSI 1.13 removed.
func old(abnormal uint64, message string) []byte {
	body := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), abnormal)
	body = protowire.AppendString(protowire.AppendTag(body, 2, protowire.BytesType), message)
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), body)
}

// conditions makes the three calls whose answers can contain a VolumeCondition, and returns the
// condition from each of them. The fake adds the bytes raw to its answers.
func conditions(t *testing.T, f *fake, c *csiclient.Client, raw []byte) []*call.Condition {
	t.Helper()
	stats, one, listed := &csi.NodeGetVolumeStatsResponse{}, &csi.ControllerGetVolumeResponse_VolumeStatus{}, &csi.ListVolumesResponse_VolumeStatus{}
	stats.ProtoReflect().SetUnknown(raw)
	one.ProtoReflect().SetUnknown(raw)
	listed.ProtoReflect().SetUnknown(raw)
	f.on(func(_ context.Context, m string, _ any) (any, error) {
		return map[string]any{
			"NodeGetVolumeStats":  stats,
			"ControllerGetVolume": &csi.ControllerGetVolumeResponse{Volume: &csi.Volume{VolumeId: "x"}, Status: one},
			"ListVolumes":         &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{Volume: &csi.Volume{VolumeId: "x"}, Status: listed}}},
		}[m], nil
	})
	// If raw is not a valid message, gRPC rejects the answers, and the calls fail.
	var got []*call.Condition
	if s, err := call.Do(t.Context(), c, call.StatsRequest{ExternalID: "x", Path: "/t"}); err == nil {
		got = append(got, s.Condition)
	}
	if v, err := call.Do(t.Context(), c, call.GetVolumeRequest{ExternalID: "x"}); err == nil {
		got = append(got, v.Condition)
	}
	if p, err := call.Do(t.Context(), c, call.ListVolumesRequest{}); err == nil && len(p.Entries) == 1 {
		got = append(got, p.Entries[0].Condition)
	}
	return got
}

func TestOldCondition(t *testing.T) {
	bad := &call.Condition{Severity: call.Abnormal, Message: "a disk is gone"}
	inField := func(body ...byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), body)
	}
	other := protowire.AppendVarint(protowire.AppendTag(nil, 77, protowire.VarintType), 5)
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	for name, row := range map[string]struct {
		raw  []byte
		want *call.Condition
	}{
		"none":                {nil, nil},
		"normal":              {old(0, "fine"), nil},
		"abnormal":            {old(1, "a disk is gone"), bad},
		"in one line":         {old(1, "a disk\nis gone"), bad},
		"without a message":   {inField(8, 1), &call.Condition{Severity: call.Abnormal}},
		"behind other fields": {append(other, old(1, "a disk is gone")...), bad},
		"empty":               {inField(), nil},
		"cut short":           {inField(8), nil},
		"a cut message":       {inField(8, 1, 18, 200), &call.Condition{Severity: call.Abnormal}},
		"another type":        {append(protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 2), 8, 1), nil},
		"no UTF-8":            {old(1, "a\xff"), &call.Condition{Severity: call.Abnormal, Message: "a\uFFFD"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := conditions(t, f, c, row.raw)
			if !reflect.DeepEqual(got, []*call.Condition{row.want, row.want, row.want}) {
				t.Errorf("got %+v, want %+v", got, row.want)
			}
		})
	}
}

// TestOldConditionGarbage checks that random content of the removed field does not crash the agent.
func TestOldConditionGarbage(t *testing.T) {
	f := newFake(t)
	c := f.client(t, csiclient.Options{})
	random := rand.New(rand.NewPCG(1, 2))
	seen := 0
	for range 300 {
		body := make([]byte, random.IntN(12))
		for i := range body {
			body[i] = byte(random.IntN(32)) // small values often form valid tags and lengths
		}
		raw := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), body)
		seen += len(conditions(t, f, c, raw))
		seen += len(conditions(t, f, c, body))
	}
	if seen < 900 { // the first call of conditions always gets three valid answers
		t.Errorf("only %d answers were read", seen)
	}
}
