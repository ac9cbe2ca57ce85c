package agent

// topic passes news from a package to others that are built later and depend on it. Subscribers are
// added while the agent opens, before the first news; topic therefore needs no lock.
type topic[T any] struct{ subscribers []func(T) }

func (t *topic[T]) subscribe(fn func(T)) { t.subscribers = append(t.subscribers, fn) }

// publish calls all subscribers in the order of their subscription.
func (t *topic[T]) publish(news T) {
	for _, fn := range t.subscribers {
		fn(news)
	}
}
