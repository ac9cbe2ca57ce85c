package request

import (
	"fmt"
	"math"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volagent/volagent/agent/localdriver/imagefs"
	"github.com/volagent/volagent/agent/localdriver/store"
)

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		typ, fs               string
		required, limit, want int64
	}{
		{store.TypeDirectory, "", 0, 0, 0},
		{store.TypeDirectory, "", 12345, 0, 12345},
		{store.TypeImage, "ext4", 0, 0, gibibyte},
		{store.TypeImage, "ext4", 0, 100*mebibyte + 1, 100 * mebibyte},
		{store.TypeImage, "ext4", 20*mebibyte + 1, 0, 20*mebibyte + 4096},
		{store.TypeImage, "ext4", 20 * mebibyte, 20 * mebibyte, 20 * mebibyte},
		{store.TypeImage, "", mebibyte, 0, mebibyte},
	} {
		v := store.Volume{Type: c.typ, FSType: c.fs}
		got, err := SizeFor(&v, &csi.CapacityRange{RequiredBytes: c.required, LimitBytes: c.limit})
		if err != nil || got != c.want {
			t.Errorf("%s %q %d to %d: got %d (%v), want %d", c.typ, c.fs, c.required, c.limit, got, err, c.want)
		}
	}
}

// FuzzCreate checks requests to create a volume. The driver must either refuse the request with a
// proper code, or plan a volume with a known type and a size within the range.
func FuzzCreate(f *testing.F) {
	for _, typ := range []string{"", store.TypeDirectory, store.TypeImage, "x"} {
		f.Add("name", store.ParamType, typ, "", "ext4", int64(0), int64(0), int32(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER), false, "")
		f.Add("name", store.ParamType, typ, "10GiB", "", int64(1<<30), int64(2<<30), int32(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER), true, "1000")
	}
	f.Add("n\x00", store.ParamFSType, "xfs", "none", "xfs", int64(1), int64(math.MaxInt64), int32(99), true, "4294967295")
	f.Add("n", store.ParamFSType, "xfs", "9223372036854775807", "ext4", int64(math.MaxInt64), int64(0), int32(7), false, "-1")
	f.Add("n", store.ParamFSType, "ext4", "18014398509481983KiB", "", int64(math.MaxInt64-1), int64(math.MaxInt64), int32(7), false, "+1")
	f.Fuzz(func(t *testing.T, name, key, value, quota, fsType string, required, limit int64, mode int32, block bool, group string) {
		c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_Mode(mode)}}
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, VolumeMountGroup: group}}
		if block {
			c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		}
		r := &csi.CreateVolumeRequest{Name: name, Parameters: map[string]string{key: value}, VolumeCapabilities: []*csi.VolumeCapability{c}}
		if quota != "" {
			r.MutableParameters = map[string]string{ParamQuota: quota}
		}
		v, err := Plan(r, store.TypeImage)
		if err == nil {
			v.Capacity, err = SizeFor(&v, &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit})
		}
		if err != nil {
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.OutOfRange {
				t.Errorf("%v: %v", r, err)
			}
			return
		}
		_, known := imagefs.FindFilesystem(v.FSType)
		typed := v.Type == store.TypeDirectory && v.FSType == "" && !v.Block || v.Type == store.TypeImage && (known || v.FSType == "" && v.Block)
		sized := v.Capacity >= required && (limit == 0 || v.Capacity <= limit) && v.Quota >= 0 && v.Quota%1024 == 0
		if !typed || !sized || v.Name != name {
			t.Errorf("%v is planned as %+v", r, v)
		}
	})
}

// FuzzQuota checks that parseQuota returns the size that the text states. The result must never be
// negative or too small.
func FuzzQuota(f *testing.F) {
	for _, text := range []string{"1", "0", "-1", "10GiB", "1 KiB", "9223372036854775807", "9223372036854775807B", "8388608TiB", "9007199254740991KiB", "18446744073709551615", "1e3", "0x10", "1_0", "KiB", "1KiBB", "\n1B", "\u00a01B"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseQuota(text)
		if err != nil {
			return
		}
		var number int64
		if _, err := fmt.Sscanf(text, "%d", &number); err != nil || n < number || n%1024 != 0 && n < math.MaxInt64-1023 {
			t.Errorf("%q is %d bytes", text, n)
		}
		if same, err := parseQuota(fmt.Sprint(n)); err != nil || same != n {
			t.Errorf("%q is %d bytes, and then %d, %v", text, n, same, err)
		}
	})
}

func TestParseQuota(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1024, "1024": 1024, "1025": 2048, "5GiB": 5 * gibibyte, "5 GiB": 5 * gibibyte, "1MB": 1000448, "2048B": 2048, "1PiB": 1 << 50, "1Gi": gibibyte, "1.5GiB": 3 * gibibyte / 2, "20G": 20000000000, "20g": 20000000000,
		"9223372036854774784": 9223372036854774784,
	} {
		if got, err := parseQuota(text); err != nil || got != want {
			t.Errorf("%q: got %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "x", "GiB", "1Q", "1.1B", "9223372036854775807", "8192PiB", "99999999999999999999"} {
		if got, err := parseQuota(text); err == nil {
			t.Errorf("%q: got %d", text, got)
		}
	}
}
