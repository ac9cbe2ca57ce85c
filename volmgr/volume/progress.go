package volume

import "context"

type progressKey struct{}

// WithProgress returns a context in which a step can report its progress.
func WithProgress(ctx context.Context, tell func(words string)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// Progress reports how far a step is, in words, to the function of WithProgress if there is one. A
// step calls it only as often as a person can read.
func Progress(ctx context.Context, words string) {
	if tell, ok := ctx.Value(progressKey{}).(func(string)); ok {
		tell(words)
	}
}
