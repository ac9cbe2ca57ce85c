package command

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// prefix is the beginning of the names of all plugins' services and cgroups.
const prefix = "volagent-plugin-"

// serviceName returns the name of the unit for one instance of a part.
func serviceName(slot, nonce string) string {
	sum := sha256.Sum256([]byte(nonce))
	return prefix + shown(slot) + "-" + hex.EncodeToString(sum[:6]) + ".service"
}

// shown shortens a slot and escapes it for the name of a unit, which has at most 255 bytes.
func shown(slot string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune(":._-", c) {
			return c
		}
		return '_'
	}, slot[:min(len(slot), 100)])
}

// groupName returns the name of the cgroup of one instance.
func groupName(slot, nonce string) string {
	return strings.TrimSuffix(serviceName(slot, nonce), ".service")
}
