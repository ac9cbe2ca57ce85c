package command

import (
	"regexp"
	"strings"
	"testing"
)

// TestServiceName checks that serviceName returns a valid name for each part, and different names
// for two instances.
func TestServiceName(t *testing.T) {
	valid := regexp.MustCompile(`^volagent-plugin-[a-zA-Z0-9:._-]+-[0-9a-f]{12}\.service$`)
	for _, slot := range []string{"ebs", "ebs/controller/a", "a b%c", strings.Repeat("x", 300)} {
		name := serviceName(slot, "nonce")
		if !valid.MatchString(name) || len(name) > 255 {
			t.Errorf("slot %.20q: service %q", slot, name)
		}
		if name == serviceName(slot, "other") || groupName(slot, "nonce")+".service" != name {
			t.Errorf("slot %.20q: group %q", slot, groupName(slot, "nonce"))
		}
	}
}
