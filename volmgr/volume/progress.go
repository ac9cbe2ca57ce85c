package volume

import "context"

type progressKey struct{}

// WithProgress returns a context in which a step says how far it is.
func WithProgress(ctx context.Context, tell func(words string)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// Progress says how far a step is, in words, to whoever wants to know. A step
// calls it no more often than a person can read.
func Progress(ctx context.Context, words string) {
	if tell, ok := ctx.Value(progressKey{}).(func(string)); ok {
		tell(words)
	}
}
