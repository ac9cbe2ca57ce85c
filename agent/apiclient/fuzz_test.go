package apiclient

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/volagent/volagent/agent/api"
)

// FuzzAnswer checks that the client always returns an answer, or an error with a code and a
// message. The fuzzer chooses the answer on the socket and the content of the start error file.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{
		"", "null", "{}", "[]", "[null]", `{"error":null}`, `{"error":{}}`, `{"error":{"code":"refused","message":"m"}}`, `{"error":{"code":1}}`, `{"spec":{"id":"a"},"claims":null}`, `{"spec":1}`, "<html>", "\xff", `"x"`, "{} {}", `[{"spec":[]}]`,
	} {
		f.Add([]byte(text), 500)
	}
	socket := filepath.Join(f.TempDir(), "s")
	c := New(socket)
	f.Fuzz(func(t *testing.T, raw []byte, code int) {
		coded := func(err error) {
			t.Helper()
			var e *api.Error
			if err != nil && (!errors.As(err, &e) || e.Code == "" || e.Error() == "") {
				t.Errorf("%q is the error %#v", raw, err)
			}
		}
		coded(c.decode(raw, new(api.Volume)))
		coded(c.decode(raw, new([]api.Volume)))
		coded(c.decode(raw, new(api.Node)))
		coded(c.decode(raw, new(api.Event)))
		resp := &http.Response{StatusCode: code, Status: http.StatusText(code), Body: io.NopCloser(bytes.NewReader(raw))}
		err := c.answeredError(t.Context(), resp)
		if coded(err); err == nil {
			t.Errorf("%q is no error", raw)
		}
		if err := os.WriteFile(api.StartError(socket), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if failed := startError(socket); failed != nil {
			coded(c.notStarted(failed))
		}
	})
}
