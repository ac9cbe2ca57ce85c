package csitest

import (
	"encoding/hex"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pageRequest describes the fields of a list request that select a page.
type pageRequest interface {
	GetMaxEntries() int32
	GetStartingToken() string
}

// tokenPrefix is the beginning of a page token. After it, the token contains the last id of the
// previous page in hex. Therefore the pages do not shift when objects are created or deleted.
const tokenPrefix = "after-"

// page sorts a list by id and returns the requested page.
func page[T any](cfg Config, all []T, id func(T) string, m pageRequest) (some []T, next string, err error) {
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(id(a), id(b)) })
	if token := m.GetStartingToken(); token != "" {
		raw, decodeErr := hex.DecodeString(strings.TrimPrefix(token, tokenPrefix))
		if !strings.HasPrefix(token, tokenPrefix) || decodeErr != nil {
			return nil, "", status.Errorf(codes.Aborted, "the starting_token %q does not come from this plugin", token)
		}

		all = slices.DeleteFunc(all, func(v T) bool { return id(v) <= string(raw) })
	}

	size := int(m.GetMaxEntries())
	if size < 0 {
		return nil, "", status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	if most := cfg.PageSize; most > 0 && (size == 0 || size > most) {
		size = most
	}
	if size == 0 || size >= len(all) {
		return all, "", nil
	}

	return all[:size], tokenPrefix + hex.EncodeToString([]byte(id(all[size-1]))), nil
}
