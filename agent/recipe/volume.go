package recipe

import (
	"maps"
	"slices"
	"strings"
)

// DefaultSecretDir is the directory of secrets on a host where the packages of the agent are installed.
const DefaultSecretDir = "/etc/volagent/secrets"

// VolumeFile returns a commented volume file for the driver. Its first volume is in force. The others
// are in comments. The files of secrets are in the given directory.
func (r *Recipe) VolumeFile(secretDir string) string {
	var b block
	b.line("A volume of %s (%s).", r.Name, r.Title)
	b.paragraph("The parameters are those of " + r.Source.Repository + " in version " + r.Source.Version + ".")
	for i := range r.Volumes {
		v := &r.Volumes[i]
		text := r.volumeText(v, secretDir)
		if i == 0 {
			b.line("")
			b.line("%s", v.heading())
			b.line("  %s", v.command())
			b.WriteString("\n" + text)
			continue
		}

		b.WriteString("\n")
		b.line("%s, in place of the one above:", strings.TrimSuffix(v.heading(), ":"))
		for line := range strings.Lines(text) {
			b.line("  %s", strings.TrimSuffix(line, "\n"))
		}
	}
	return b.String()
}

// Creates reports whether volctl volume create makes the volume of VolumeFile. Otherwise the volume
// exists, and must be registered.
func (r *Recipe) Creates() bool { return r.Volumes[0].ExternalID == "" }

// command returns the command for a volume file with the volume.
func (v *Volume) command() string {
	if v.ExternalID != "" {
		return "volctl volume register FILE"
	}
	return "volctl volume create FILE"
}

// heading introduces the volume.
func (v *Volume) heading() string {
	words := "A volume"
	switch {
	case strings.HasPrefix(v.Title, "that "):
		words += " " + v.Title
	case v.Title != "":
		words += ", " + v.Title
	}
	if v.ExternalID != "" {
		words += `, for "volctl volume register"`
	}
	return words + ":"
}

// volumeText returns the volume file without a comment at the top.
func (r *Recipe) volumeText(v *Volume, secretDir string) string {
	var b strings.Builder
	b.WriteString("id: " + v.ID + "\nplugin_id: " + r.Name + "\n")
	if v.ExternalID != "" {
		b.WriteString("external_id: " + parameterText(v.ExternalID) + note(v.RegisterNote) + "\n")
	}
	if v.Capacity != "" {
		b.WriteString("capacity_min: " + v.Capacity + "\n")
	}

	attachment := v.Attachment
	if attachment == "" {
		attachment = "file-system"
	}
	b.WriteString("capabilities:\n")
	for _, mode := range v.Modes {
		b.WriteString("  - {access_mode: " + mode + ", attachment_mode: " + attachment + "}\n")
	}

	if options := v.mountOptions(); options != "" {
		b.WriteString("mount_options: " + options + "\n")
	}
	if len(v.Topology) > 0 {
		b.WriteString("topology_request:\n  required:\n")
		for _, key := range slices.Sorted(maps.Keys(v.Topology)) {
			b.WriteString("    - {" + key + ": " + yamlText(v.Topology[key]) + "}\n")
		}
	}

	writeParameters(&b, "parameters", v.Parameters)
	writeParameters(&b, "context", v.Context)
	r.writeSecrets(&b, v.Secrets, secretDir)
	return b.String()
}

func (v *Volume) mountOptions() string {
	var parts []string
	if v.FSType != "" {
		parts = append(parts, "fs_type: "+v.FSType)
	}
	if len(v.MountFlags) > 0 {
		parts = append(parts, "mount_flags: ["+strings.Join(v.MountFlags, ", ")+"]")
	}
	if len(parts) == 0 {
		return ""
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// writeParameters writes a mapping. If all its keys are optional, the key itself is in a comment, too.
func writeParameters(b *strings.Builder, key string, all []Parameter) {
	if len(all) == 0 {
		return
	}

	some := slices.ContainsFunc(all, func(p Parameter) bool { return !p.Optional })
	b.WriteString(hidden(!some) + key + ":\n")
	for _, p := range all {
		b.WriteString("  " + hidden(p.Optional) + p.Key + ": " + parameterText(p.Value) + note(p.Note) + "\n")
	}
}

// parameterText returns the value of a parameter, which must be a text for the agent.
func parameterText(s string) string {
	if s != "" && strings.Trim(s, "0123456789.") == "" {
		return `"` + s + `"`
	}
	return yamlText(s)
}

func (r *Recipe) writeSecrets(b *strings.Builder, all []VolumeSecret, dir string) {
	if len(all) == 0 {
		return
	}

	some := slices.ContainsFunc(all, func(s VolumeSecret) bool { return !s.Optional })
	b.WriteString(hidden(!some) + "secrets:\n")
	for _, s := range all {
		words := s.Note
		if words == "" {
			secret, _ := r.secret(s.Secret)
			words = secret.Note
		}
		b.WriteString("  " + hidden(s.Optional) + s.Key + ": {file: " + yamlText(r.secretPath(dir, s.Secret)) + "}" + note(words) + "\n")
	}
}

// hidden returns the comment character of an optional line.
func hidden(optional bool) string {
	if optional {
		return "# "
	}
	return ""
}

func note(words string) string {
	if words == "" {
		return ""
	}
	return "   # " + words
}
