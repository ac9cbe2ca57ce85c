package report_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/volagent/volagent/cmd/volagent/test/harness"
)

// TestEventsKeep checks that an agent with events_keep shows the events of that period, and has
// deleted older ones.
func TestEventsKeep(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t)
	h.Must(os.WriteFile(filepath.Join(h.Dir, "volagent.yaml"), []byte("events_keep: 20d\n"), 0o644))
	if got := checkConfig(h); !strings.Contains(got, `events_keep: "20d"`) {
		t.Errorf("check-config prints\n%s", got)
	}
	dir := filepath.Join(h.Dir, "d", "events")
	h.Must(os.MkdirAll(dir, 0o700))
	for i, days := range []int{22, 19} {
		at := time.Now().UTC().AddDate(0, 0, -days)
		line := fmt.Sprintf(`{"time":%q,"seq":%d,"type":"staged","message":"%d days ago"}`+"\n", at.Format(time.RFC3339), i+1, days)
		h.Must(os.WriteFile(filepath.Join(dir, at.Format(time.DateOnly)+".0000.jsonl"), []byte(line), 0o600))
	}
	h.Start()
	if got := h.Volctl("events"); !strings.Contains(got, "19 days ago") || strings.Contains(got, "22 days ago") {
		t.Errorf("volctl events prints\n%s", got)
	}
}
