package cli

import "github.com/spf13/cobra"

func newVolume(a *app) *cobra.Command {
	cmd := group("volume", "Create, claim and detach volumes", "",
		newVolumeInit(a), newVolumeCreate(a), newVolumeRegister(a), newVolumeValidate(a),
		newVolumeList(a), newVolumeStatus(a), newInspect(newVolumeStatus(a), a, "Show a volume as JSON (short for volume status ID -o json)"),
		newVolumeClaim(a), newVolumeDetach(a), newVolumeDeregister(a), newVolumeDelete(a), newVolumeStats(a),
		newVolumeExpand(a), newVolumeModify(a), newVolumeExport(a), newVolumeSnapshot(a),
	)
	cmd.AddCommand(pointers()...)
	return cmd
}
