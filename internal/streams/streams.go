// Package streams keeps a value per stream of requests, for as many streams as there is room for.
//
// A stream has an owner, such as an address. If there is no room for a new stream, the owner with the most streams loses
// the one that it has not used for longest. If several have as many, the new stream's owner does. So an owner that begins a million streams
// loses only its own. If all have one stream each, the one that was not used for longest goes.
package streams

import (
	"container/heap"
	"container/list"
	"time"
)

// Table has at most a fixed number of values. It has no clock: all times are nanoseconds of one clock of the caller. One
// goroutine at a time uses it.
type Table[O, K comparable, V any] struct {
	most    int
	idle    int64
	streams map[K]*list.Element
	owners  map[O]*owner[O]
	richest ranking[O]
	used    *list.List // of *stream, the one not used for longest first
}

type stream[O, K comparable, V any] struct {
	key   K
	value V
	owner *owner[O]
	used  int64
	own   *list.Element // of owner.streams
}

type owner[O comparable] struct {
	key     O
	streams *list.List // of elements of Table.used, in the same order
	rank    int        // the owner's index in the ranking
}

// New returns a table for at most so many streams. It forgets a stream that was not used for that long.
func New[O, K comparable, V any](most int, idle time.Duration) *Table[O, K, V] {
	return &Table[O, K, V]{
		most: max(most, 1), idle: int64(idle), streams: map[K]*list.Element{}, owners: map[O]*owner[O]{}, used: list.New(),
	}
}

// Len returns the number of streams.
func (t *Table[O, K, V]) Len() int { return len(t.streams) }

// Find returns the place of a stream's value until the table's next call, or nil if it has none.
func (t *Table[O, K, V]) Find(now int64, key K) *V {
	t.expire(now)
	at := t.streams[key]
	if at == nil {
		return nil
	}
	s := at.Value.(*stream[O, K, V])
	s.used = now
	t.used.MoveToBack(at)
	s.owner.streams.MoveToBack(s.own)
	return &s.value
}

// Add returns the place of a new stream's value until the table's next call. The table must not have the stream.
func (t *Table[O, K, V]) Add(now int64, by O, key K) *V {
	t.expire(now)
	if len(t.streams) >= t.most {
		t.remove(t.victim(t.owners[by]))
	}

	o := t.owners[by]
	if o == nil {
		o = &owner[O]{key: by, streams: list.New()}
		t.owners[by] = o
		heap.Push(&t.richest, o)
	}
	s := &stream[O, K, V]{key: key, owner: o, used: now}
	at := t.used.PushBack(s)
	s.own = o.streams.PushBack(at)
	heap.Fix(&t.richest, o.rank)
	t.streams[key] = at
	return &s.value
}

// victim returns the stream that makes room for a new one of an owner, which is nil if it has none.
func (t *Table[O, K, V]) victim(o *owner[O]) *list.Element {
	richest := t.richest[0]
	switch {
	case o != nil && o.streams.Len() == richest.streams.Len():
		richest = o
	case richest.streams.Len() == 1:
		return t.used.Front()
	}
	return richest.streams.Front().Value.(*list.Element)
}

// Remove forgets a stream, if the table has it.
func (t *Table[O, K, V]) Remove(key K) {
	if at := t.streams[key]; at != nil {
		t.remove(at)
	}
}

func (t *Table[O, K, V]) expire(now int64) {
	for at := t.used.Front(); at != nil && now-at.Value.(*stream[O, K, V]).used > t.idle; at = t.used.Front() {
		t.remove(at)
	}
}

func (t *Table[O, K, V]) remove(at *list.Element) {
	s := t.used.Remove(at).(*stream[O, K, V])
	delete(t.streams, s.key)
	o := s.owner
	if o.streams.Remove(s.own); o.streams.Len() == 0 {
		delete(t.owners, o.key)
		heap.Remove(&t.richest, o.rank)
		return
	}
	heap.Fix(&t.richest, o.rank)
}

// ranking is a heap (container/heap) whose first owner has the most streams.
type ranking[O comparable] []*owner[O]

func (r ranking[O]) Len() int           { return len(r) }
func (r ranking[O]) Less(i, j int) bool { return r[i].streams.Len() > r[j].streams.Len() }

func (r ranking[O]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].rank, r[j].rank = i, j
}

func (r *ranking[O]) Push(x any) {
	o := x.(*owner[O])
	o.rank = len(*r)
	*r = append(*r, o)
}

func (r *ranking[O]) Pop() any {
	last := len(*r) - 1
	o := (*r)[last]
	*r = (*r)[:last]
	return o
}
