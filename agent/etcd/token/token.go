// Package token makes and checks the tokens with which hosts join a cluster. A token names the
// addresses of members, the fingerprint of the cluster's authority, and a secret that works once.
// The cluster stores only a hash of the secret.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/volagent/volagent/agent/api"
	"github.com/volagent/volagent/agent/etcd/wire"
)

// begin marks a text as a token of the first format.
const begin = "volagent1."

// hintNew is the hint of errors about a token that does not work.
const hintNew = "make another token on a member: volctl cluster token"

// Token lets one host join a cluster.
type Token struct {
	Endpoints   []string `json:"e"` // addresses of join listeners, as HOST:PORT
	Fingerprint string   `json:"f"` // of the authority's certificate
	ID          string   `json:"i"`
	Secret      string   `json:"s"`
}

// Record is what the cluster stores of a token.
type Record struct {
	Hash    string    `json:"hash"` // of the secret
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Used    time.Time `json:"used,omitzero"`
	By      string    `json:"by,omitempty"`  // the host that used the token
	Key     string    `json:"key,omitempty"` // the fingerprint of that host's key
}

// New makes a token with a life, and its record.
func New(endpoints []string, fingerprint string, now time.Time, life time.Duration) (Token, Record) {
	id, secret := make([]byte, 6), make([]byte, 32)
	_, _ = rand.Read(id) // crypto/rand never fails
	_, _ = rand.Read(secret)

	t := Token{endpoints, fingerprint, hex.EncodeToString(id), base64.RawURLEncoding.EncodeToString(secret)}
	return t, Record{Hash: hash(t.Secret), Created: now.UTC(), Expires: now.Add(life).UTC()}
}

// String returns the text of the token. The text contains the secret.
func (t Token) String() string {
	raw, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return begin + base64.RawURLEncoding.EncodeToString(raw)
}

// Parse reads the text of a token. White space in it is ignored, because a terminal may wrap the
// text. The errors do not contain the text.
func Parse(text string) (Token, error) {
	text = strings.Join(strings.Fields(text), "")
	body, ok := strings.CutPrefix(text, begin)
	switch {
	case text == "":
		return Token{}, wire.Errorf(api.CodeInvalid, hintNew, "the join token is empty")
	case !ok:
		return Token{}, wire.Errorf(api.CodeInvalid, "copy the whole token, from volagent1 to its end", "this is not a join token")
	}

	var t Token
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil || t.ID == "" || t.Secret == "" || t.Fingerprint == "" || len(t.Endpoints) == 0 {
		return Token{}, wire.Errorf(api.CodeInvalid, "copy the whole token, from volagent1 to its end", "the join token is incomplete or damaged")
	}

	return t, nil
}

// Check returns an error unless the secret of a token is right and may be used now by the host with
// the given key. The host that used a token may repeat its request, because the answer may have been
// lost.
func (r Record) Check(secret, key string, now time.Time) error {
	right := subtle.ConstantTimeCompare([]byte(hash(secret)), []byte(r.Hash)) == 1
	switch {
	case !right:
		return Unknown()
	case now.After(r.Expires):
		return wire.Errorf(api.CodePermission, hintNew, "the join token expired at %s", r.Expires.Format(time.RFC3339))
	case !r.Used.IsZero() && r.Key != key:
		return wire.Errorf(api.CodePermission, hintNew, "the join token was used already, by host %q at %s", r.By, r.Used.Format(time.RFC3339))
	default:
		return nil
	}
}

// Unknown returns the error for a token that the cluster does not know, or whose secret is wrong.
func Unknown() error {
	return wire.Errorf(api.CodePermission, hintNew, "the cluster does not know this join token")
}

// UsedBy returns the record after its use by a host.
func (r Record) UsedBy(host, key string, now time.Time) Record {
	r.Used, r.By, r.Key = now.UTC(), host, key
	return r
}

// Outdated reports whether the record is no longer needed for a good error message.
func (r Record) Outdated(now time.Time) bool { return now.After(r.Expires.Add(24 * time.Hour)) }

// hash returns the SHA-256 hash of a secret. The secret has 256 random bits, so that no slow hash
// is necessary.
func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
