package command

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// prefix is the beginning of the names of all services and cgroups that run plugins.
const prefix = "volagent-plugin-"

// serviceName returns the name of the systemd service that runs one instance of a part.
func serviceName(slot, nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return prefix + shown(slot) + "-" + hex.EncodeToString(sum[:6]) + ".service"
}

// shown converts the key of a part (its slot) for use in the name of a unit. It replaces forbidden
// characters and shortens the key, because a unit's name has at most 255 bytes.
func shown(slot string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune(":._-", c) {
			return c
		}
		return '_'
	}, slot[:min(len(slot), 100)])
}

// groupName returns the name of the cgroup that contains one instance of a part.
func groupName(slot, nonce string) string {
	return strings.TrimSuffix(serviceName(slot, nonce), ".service")
}
