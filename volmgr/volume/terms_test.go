package volume

import (
	"reflect"
	"slices"
	"testing"

	"github.com/volagent/volagent/volmgr/call"
)

// This line compiles only if Terms is comparable.
var _ map[Terms]bool

// allTerms returns terms in which every field is set.
func allTerms() Terms {
	return Terms{
		ReadOnly: true, Mode: call.Capability{Access: call.SingleNodeWriter, Attachment: call.FileSystem}, Owner: Owner{Kind: OwnerPID, PID: 7, Boot: "b"},
		At: "/srv", AtFlags: "nosuid", AtWritable: true, Own: Ownership{UID: "5", GID: "6", Mode: "0770", Recursive: true},
		Note: "for the restore test",
	}
}

// TestTermsDifferences checks the names of the terms that differ. An omitted mode, a group that the
// plugin sets, and a default owner must not count as differences.
func TestTermsDifferences(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(had, asked *Terms)
		want   []string
	}{
		"the same":                       {func(_, _ *Terms) {}, nil},
		"no modes":                       {func(_, asked *Terms) { asked.Mode = call.Capability{} }, nil},
		"a reader":                       {func(had, _ *Terms) { had.ReadOnly = false }, []string{"read-only"}},
		"another access mode":            {func(_, asked *Terms) { asked.Mode = call.Capability{Access: call.MultiNodeMultiWriter} }, []string{"access mode"}},
		"another attachment mode":        {func(_, asked *Terms) { asked.Mode = call.Capability{Attachment: call.BlockDevice} }, []string{"attachment mode"}},
		"another owner":                  {func(_, asked *Terms) { asked.Owner.PID = 8 }, []string{"owner"}},
		"another directory":              {func(_, asked *Terms) { asked.At = "/other" }, []string{"directory"}},
		"no directory":                   {func(_, asked *Terms) { asked.At, asked.AtWritable = "", false }, []string{"directory"}},
		"other options":                  {func(_, asked *Terms) { asked.AtFlags = "" }, []string{"list of mount options at /srv"}},
		"a guarded directory":            {func(_, asked *Terms) { asked.AtWritable = false }, []string{"write protection of the directory"}},
		"no ownership":                   {func(_, asked *Terms) { asked.Own = Ownership{} }, []string{"uid, gid or mode"}},
		"the root alone":                 {func(_, asked *Terms) { asked.Own.Recursive = false }, []string{"uid, gid or mode"}},
		"the plugin applies the group":   {func(had, _ *Terms) { had.Own.ByPlugin = true }, nil},
		"a default owner in the claim":   {func(had, asked *Terms) { had.Own, asked.Own = Ownership{}.WithDefault("1", "2"), Ownership{} }, nil},
		"a default owner in the request": {func(had, asked *Terms) { had.Own, asked.Own = Ownership{}, Ownership{}.WithDefault("1", "2") }, nil},
		"another note":                   {func(_, asked *Terms) { asked.Note = "x" }, []string{"note"}},
		"a note for a claim without one": {func(had, _ *Terms) { had.Note = "" }, []string{"note"}},
		"no note":                        {func(_, asked *Terms) { asked.Note = "" }, nil},
		"an owner that was a default": {func(had, asked *Terms) {
			had.Own, asked.Own = Ownership{}.WithDefault("1", "2"), Ownership{UID: "1", GID: "2"}
		}, []string{"uid, gid or mode"}},
		"all": {func(_, asked *Terms) {
			*asked = Terms{Mode: call.Capability{Access: call.MultiNodeMultiWriter, Attachment: call.BlockDevice}, At: "/other", Note: "x"}
		}, []string{
			"read-only", "access mode", "attachment mode", "directory", "write protection of the directory", "owner",
			"list of mount options at /srv", "uid, gid or mode", "note",
		}},
	} {
		had, asked := allTerms(), allTerms()
		tt.change(&had, &asked)
		if got := had.differences(asked); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestEveryTermIsCompared changes each field of the terms, including the fields of nested structs.
// The test fails if differences does not compare a field, for example a new one.
func TestEveryTermIsCompared(t *testing.T) {
	decided := []string{"Own.ByPlugin"} // the agent sets these fields itself
	var each func(v reflect.Value, path string, asked *Terms)
	each = func(v reflect.Value, path string, asked *Terms) {
		for i := range v.NumField() {
			f, name := v.Field(i), path+v.Type().Field(i).Name
			if f.Kind() == reflect.Struct {
				each(f, name+".", asked)
				continue
			}

			old := reflect.New(f.Type()).Elem()
			old.Set(f)
			switch f.Kind() {
			case reflect.Bool:
				f.SetBool(!f.Bool())
			case reflect.String:
				f.SetString(f.String() + "1")
			case reflect.Int:
				f.SetInt(f.Int() + 1)
			case reflect.Uint64:
				f.SetUint(f.Uint() + 1)
			default:
				t.Fatalf("%s is a %s: teach this test to change it", name, f.Kind())
			}

			if compared := len(allTerms().differences(*asked)) > 0; compared == slices.Contains(decided, name) {
				t.Errorf("%s: compared %t", name, compared)
			}
			f.Set(old)
		}
	}

	asked := allTerms()
	each(reflect.ValueOf(&asked).Elem(), "", &asked)
}
