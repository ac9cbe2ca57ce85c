package localdriver

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volagent/volagent/agent/localdriver/csierr"
	"github.com/volagent/volagent/agent/localdriver/request"
	"github.com/volagent/volagent/agent/localdriver/store"
)

// The data of a volume must not outgrow the requested size. If a request has a size but no type,
// the driver therefore makes a directory with a quota if the filesystem enforces quotas, and
// otherwise an image.

// planNew plans the volume for a create request without a source. The argument have is the existing
// volume of the same name, or nil. The result ofSize is true if the volume is an image only because
// the request has a size.
func (d *driver) planNew(req *csi.CreateVolumeRequest, have *store.Volume) (want store.Volume, ofSize bool, err error) {
	given, err := request.ParseParams(req.GetParameters())
	if err != nil {
		return want, false, err
	}

	change, err := request.ParseMutable(req.GetMutableParameters())
	if err != nil {
		return want, false, err
	}

	typ := store.TypeDirectory
	required := req.GetCapacityRange().GetRequiredBytes()

	switch {
	case have != nil && !needsImage(req, given):
		typ = have.Type
	case required <= 0 || change.Quota > 0:
	case needsImage(req, given) || change.Given || d.projects.check() != nil:
		typ, ofSize = store.TypeImage, given.Typ == "" && have == nil
	}

	if want, err = request.Plan(req, typ); err != nil || given.Typ != "" {
		return want, false, err
	}

	switch {
	case have != nil && have.Type == store.TypeImage && given.FsType == "" && !namesFilesystem(req) && want.FSType != "" && have.FSType != "":
		// the request names no filesystem, so the filesystem of the existing volume fits
		want.FSType = have.FSType
	case have == nil && want.Type == store.TypeDirectory && required > 0 && !change.Given:
		want.Quota, want.QuotaIsSize = request.RoundQuota(required), true
	}

	return want, ofSize, nil
}

// needsImage reports whether a request needs a property that a directory cannot have.
func needsImage(req *csi.CreateVolumeRequest, given request.Params) bool {
	for _, c := range req.GetVolumeCapabilities() {
		if c.GetBlock() != nil {
			return true
		}
	}
	return given.FsType != "" || namesFilesystem(req)
}

// adviseDirectory extends an error about an image that was chosen only because the request has a
// size. It adds the advice to request a directory instead.
func adviseDirectory(err error, ofSize bool) error {
	refused := (*csierr.Error)(nil)
	if !ofSize || !errors.As(err, &refused) || refused.Code != codes.FailedPrecondition && refused.Code != codes.OutOfRange {
		return err
	}
	return fmt.Errorf("%w; a volume with a size is an image where the file system enforces no quotas; --param type=directory makes a directory, whose size is not enforced", err)
}
