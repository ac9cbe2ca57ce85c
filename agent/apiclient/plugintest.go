package apiclient

import (
	"context"
	"net/http"

	"github.com/volagent/volagent/agent/api"
)

// TestPlugin tests a plugin. It calls each after every check, and returns the summary after the
// agent has cleaned up the test. If ctx ends or each returns an error, the agent ends the test and
// cleans up. TestPlugin returns an error from each unchanged.
func (c *Client) TestPlugin(ctx context.Context, id string, q api.PluginTest, each func(api.PluginCheck) error) (*api.PluginTestSummary, error) {
	for line, err := range lines[api.PluginTestLine](ctx, c, call{method: http.MethodPost, path: []string{"plugins", id, "test"}, body: q}) {
		if err != nil {
			return nil, err
		}
		switch {
		case line.Error != nil:
			return line.Summary, line.Error
		case line.Summary != nil:
			return line.Summary, nil
		case line.Check != nil:
			if err := each(*line.Check); err != nil {
				return nil, err
			}
		}
	}

	return nil, &api.Error{Code: api.CodeUnreachable, Message: "the agent ended the test early; at its next start it removes the traces of the test", Hint: "systemctl status volagent"}
}
