package suggest

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/volagent/volagent/volmgr/remedy"
)

// words contains the text of each kind of remedy.
var words = map[remedy.Kind]func(s []string) string{
	remedy.ShowVolume:       command("volctl volume status %s"),
	remedy.CreateAgain:      func(s []string) string { return Command("volctl volume create %s %s", s[0], Options(s[1:])) },
	remedy.CreateFromFile:   text("volctl volume create FILE, with the file of the first time"),
	remedy.DeleteVolume:     command("volctl volume delete %s -y"),
	remedy.ForceDeregister:  command("volctl volume deregister %s --force"),
	remedy.GiveUpCalls:      command("volctl volume deregister %s --force --forget"),
	remedy.ExpandVolume:     command("volctl volume expand %s %s"),
	remedy.WithdrawExpand:   command("volctl volume expand %s --withdraw"),
	remedy.ModifyVolume:     func(s []string) string { return Command("volctl volume modify %s %s", s[0], s[1:]) },
	remedy.AddCapability:    text("add it to capabilities and run: volctl volume register FILE"),
	remedy.RaiseCapacityMax: text("raise capacity_max in its file, and run: volctl volume register FILE"),
	remedy.DetachClaim:      command("volctl volume detach %s %s"),
	remedy.ForceDetach:      command("volctl volume detach %s %s --force"),
	remedy.DetachWithout:    command("volctl volume detach %s %s --without-plugin=%s"),
	remedy.DetachAll:        command("volctl volume detach %s --all"),
	remedy.DetachUnneeded:   text("detach one that is not needed, then ask again: volctl volume list"),
	remedy.Unmount:          command("volctl umount %s"), // umount(8) names the services that use the mount
	remedy.ListSnapshots:    command("volctl volume snapshot list --plugin %s"),
	remedy.ShowPlugin:       command("volctl plugin status %s"),
	remedy.ShowPluginLog:    command("volctl plugin logs %s"),
	remedy.StartPlugin:      command("volctl plugin start %s"),
	remedy.ShowNode:         text("volctl node status"),
	remedy.ShowTest:         command("volctl plugin test %s"),
	remedy.UnmountPath:      command("umount %s"),
	remedy.Follow:           func(s []string) string { return s[0] },
	remedy.ShowTable:        text("findmnt"),
	remedy.Undrain:          text("volctl node undrain"),
	remedy.ShareVolume:      command("volctl volume share %s"),
	remedy.UnshareVolume:    command("volctl volume unshare %s"),
	remedy.ReplaceNode:      command("volctl node replace %s --reason TEXT -y"),
	remedy.EndProcess:       command("kill %s"),

	remedy.StopUser: func(s []string) string {
		pid, _ := strconv.Atoi(s[1]) // the caller formatted this value as a number, so it is valid
		return Stop(s[0], pid)
	},
	remedy.AwaitFree: func(s []string) string {
		return "wait for it: " + Command("volctl wait --volume %s --for free", s[0])
	},
	remedy.SeeOrGiveUpCalls: func(s []string) string {
		return "to see how that stands: volctl node status; to give it up: " + Command("volctl volume deregister %s --force --forget", s[0])
	},
	remedy.ReturnOrReplace: func(s []string) string {
		return "start its agent, or if it is switched off: " + Command("volctl node fence %s --powered-off --reason TEXT", s[0]) +
			", or if its machine is permanently lost: " + Command("volctl node replace %s --reason TEXT -y", s[0])
	},
	remedy.StopUnit: func(s []string) string { return cmp.Or(Command("systemctl stop %s", s[0]), forceDetach(s[1:])) },
	remedy.StopContainers: func(s []string) string {
		return fmt.Sprintf("%s stop $(%s)", s[0], Command("%s ps -q --filter volume=%s", s[0], s[1]))
	},
	remedy.EndOwner: func(s []string) string {
		return fmt.Sprintf("end pid %s, or unmount under it: %s", s[0], forceDetach(s[1:]))
	},
	remedy.StopOwner: func(s []string) string {
		return fmt.Sprintf("%s, or unmount under it: %s", cmp.Or(Command("systemctl stop %s", s[0]), "stop its unit"), forceDetach(s[1:]))
	},
	remedy.StopOwners: func(s []string) string {
		return fmt.Sprintf("stop its containers (%s), or unmount under them: %s", Command("%s ps --filter volume=%s", s[0], s[1]), forceDetach(s[2:]))
	},
}

// Words returns the command of a remedy, in some cases as part of a sentence. It returns "" for an
// empty remedy.
func Words(r remedy.Remedy) string {
	if r.Empty() {
		return ""
	}
	return words[r.Kind](r.Subjects)
}

// Hint returns the words of a remedy or, if the remedy is empty, the given advice.
func Hint(r remedy.Remedy, advice string) string { return cmp.Or(Words(r), advice) }

// command returns a function that formats a remedy as one command, with the given format for
// Command.
func command(format string) func([]string) string {
	return func(subjects []string) string {
		args := make([]any, len(subjects))
		for i, s := range subjects {
			args[i] = s
		}
		return Command(format, args...)
	}
}

// text returns a function that always returns the text s. It is for remedies without subjects.
func text(s string) func([]string) string { return func([]string) string { return s } }

func forceDetach(s []string) string {
	return Command("volctl volume detach %s %s --force", s[0], s[1])
}
