package hold

import (
	"context"
	"sync"
	"time"

	"github.com/volagent/volagent/volmgr/call"
	"github.com/volagent/volagent/volmgr/volume"
)

// lane is a class of writes to the cluster. Each lane has its own limit of writes at once, so that a
// write never waits for a write of another lane:
//
//	holds     new holds and their confirmation      128 at once
//	releases  holds that are given up                32 at once
//	statuses  what people see of this host            1 at once
//
// If a host gives up a thousand volumes, only 32 of these writes are on their way to the store. A new
// hold therefore competes with few other writes.
type lane int

// These are the lanes.
const (
	holds lane = iota
	releases
	statuses
	laneCount
)

// laneNames are the names of the lanes for people.
var laneNames = [laneCount]string{"holds", "releases", "status"}

// atOnce is the number of writes of each lane that may be on their way to the store.
var atOnce = [laneCount]int{128, 32, 1}

// lanes limits the writes to the store.
type lanes struct {
	slots [laneCount]chan struct{}

	mu      sync.Mutex
	next    uint64
	waiting [laneCount]map[uint64]time.Time // when each waiting write has entered the queue
}

// newLanes returns lanes without a write.
func newLanes() *lanes {
	l := &lanes{}
	for i := range l.slots {
		l.slots[i], l.waiting[i] = make(chan struct{}, atOnce[i]), map[uint64]time.Time{}
	}
	return l
}

// enter waits until a write may begin. The caller calls leave after the write. It fails only if ctx
// ends.
func (l *lanes) enter(ctx context.Context, in lane) (leave func(), err error) {
	leave = func() { <-l.slots[in] }
	select {
	case l.slots[in] <- struct{}{}:
		return leave, nil
	default:
	}

	l.mu.Lock()
	l.next++
	ticket := l.next
	l.waiting[in][ticket] = time.Now()
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiting[in], ticket)
	}()

	select {
	case l.slots[in] <- struct{}{}:
		return leave, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// queue returns the number of waiting writes of a lane, and how long the oldest has waited.
func (l *lanes) queue(in lane, now time.Time) (length int, age time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()

	for _, since := range l.waiting[in] {
		age = max(age, now.Sub(since))
	}
	return len(l.waiting[in]), age
}

// laneKey is the key of the lane in a context. The lane is the priority of a request, and all writes
// of one step have the same.
type laneKey struct{}

// inLane returns a context for the writes of a step.
func inLane(ctx context.Context, step call.Method) context.Context {
	if step != volume.GiveUp && step != call.ControllerUnpublish {
		return ctx
	}
	return context.WithValue(ctx, laneKey{}, releases)
}

// laneOf returns the lane of the writes under a context.
func laneOf(ctx context.Context) lane {
	in, _ := ctx.Value(laneKey{}).(lane)
	return in
}
