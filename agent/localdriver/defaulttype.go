package localdriver

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// A size is a promise. A request that names a size and no type gets a volume that cannot outgrow
// the size: a directory with a quota where the filesystem enforces quotas, and else an image.

// planNew turns a create request without a source into the volume it asks for. have is the volume
// that has the name already, if any. ofSize tells that the size alone made the volume an image.
func (d *driver) planNew(req *csi.CreateVolumeRequest, have *volume) (want volume, ofSize bool, err error) {
	given, err := parseParams(req.GetParameters())
	if err != nil {
		return want, false, err
	}
	change, err := parseMutable(req.GetMutableParameters())
	if err != nil {
		return want, false, err
	}
	typ := typeDirectory
	required := req.GetCapacityRange().GetRequiredBytes()
	switch {
	case have != nil && !needsImage(req, given):
		typ = have.Type
	case required <= 0 || change.quota > 0:
	case needsImage(req, given) || change.given || d.projects.check() != nil:
		typ, ofSize = typeImage, given.typ == "" && have == nil
	}
	if want, err = plan(req, typ); err != nil || given.typ != "" {
		return want, false, err
	}
	switch {
	case have != nil && have.Type == typeImage && given.fsType == "" && !namesFilesystem(req) && want.FSType != "" && have.FSType != "":
		want.FSType = have.FSType // whichever it has
	case have == nil && want.Type == typeDirectory && required > 0 && !change.given:
		want.Quota, want.QuotaIsSize = roundQuota(required), true
	}
	return want, ofSize, nil
}

// needsImage tells whether a request asks for what a directory cannot be.
func needsImage(req *csi.CreateVolumeRequest, given params) bool {
	for _, c := range req.GetVolumeCapabilities() {
		if c.GetBlock() != nil {
			return true
		}
	}
	return given.fsType != "" || namesFilesystem(req)
}

// adviseDirectory adds to the refusal of an image that was made one for its size what else there is.
func adviseDirectory(err error, ofSize bool) error {
	refused := (*coded)(nil)
	if !ofSize || !errors.As(err, &refused) || refused.code != codes.FailedPrecondition && refused.code != codes.OutOfRange {
		return err
	}
	return fmt.Errorf("%w; a volume with a size is an image where the file system enforces no quotas; --param type=directory makes a directory, whose size is not enforced", err)
}
