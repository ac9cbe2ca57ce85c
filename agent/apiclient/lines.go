package apiclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"iter"
)

// maxLine limits the length of one line of an answer, in bytes.
const maxLine = 1 << 20

// lines sends a request and yields the value of each line of its answer. The iteration ends after
// an error, or when the caller stops it.
func lines[T any](ctx context.Context, c *Client, r call) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		resp, err := c.send(ctx, r)
		if err != nil {
			yield(none, err)
			return
		}
		defer resp.Body.Close()
		scan := bufio.NewScanner(resp.Body)
		scan.Buffer(nil, maxLine)
		for scan.Scan() {
			if len(bytes.TrimSpace(scan.Bytes())) == 0 {
				continue
			}
			var line T
			if err := c.decode(scan.Bytes(), &line); err != nil {
				yield(none, err)
				return
			}
			if !yield(line, nil) {
				return
			}
		}
		switch err := scan.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			yield(none, c.foreign("a line of its answer is longer than 1 MiB"))
		case err != nil:
			yield(none, c.transportError(ctx, err))
		}
	}
}
