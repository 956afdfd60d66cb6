package gputest

import (
	"errors"
	"testing"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/libml/device"
)

// follows queues a batch of one device behind a long batch of another one. It must begin after that,
// although its own work is short, and must not wait for what is queued there later.
func follows(t *testing.T, b *harness) {
	slab := pages(t, 4096)
	for i := range slab {
		slab[i] = byte(i*7 + 1)
	}
	first, firstTensors := small(t, pages(t, 4096))
	second, tensors := small(t, slab)
	memory, err := b.context.Allocate(stageBytes)
	check(t, err)
	defer func() { check(t, b.context.Free(memory)) }()
	var ended, began cuda.Event
	for _, e := range []*cuda.Event{&ended, &began} {
		*e, err = b.context.NewEvent(true)
		check(t, err)
		defer func() { check(t, e.Destroy()) }()
	}

	const batches, work = 20, 100
	refused := make([]bool, 8)
	early := 0
	for i := range batches {
		slot, before := i%2, i/2%2
		check(t, first.Gather(before, firstTensors[before].Input, requests(8), refused))
		for range work {
			check(t, cuda.StreamOf(first.BatchStream(before)).Copy(memory, cuda.At(b.stage), stageBytes))
		}
		check(t, ended.Record(cuda.StreamOf(first.BatchStream(before))))
		check(t, first.Fetch(before, 8))

		check(t, second.Gather(slot, tensors[slot].Input, requests(8), refused))
		check(t, second.Follow(slot, first, before))
		check(t, began.Record(cuda.StreamOf(second.BatchStream(slot))))
		check(t, second.Fetch(slot, 8))
		if done, err := ended.Query(); err != nil {
			t.Fatal(err)
		} else if !done {
			early++
		}

		_, err = second.Wait(slot)
		check(t, err)
		gap, err := cuda.Elapsed(ended, began) // an error if the first batch has not ended
		check(t, err)
		if gap < 0 {
			t.Errorf("batch %d began %v before the end of the one that it follows", i, -gap)
		}
		_, err = first.Wait(before)
		check(t, err)
		if got := b.read(tensors[slot].Input); string(got) != string(slab[:len(got)]) {
			t.Error("the batch that follows has another input than the slab")
		}
		if i == batches-1 {
			t.Logf("%d of %d batches were queued before the one before ended; the last began %v after that", early, batches, gap)
		}
	}
	if early == 0 {
		t.Error("no batch was queued before the one before ended")
	}
	for _, slot := range []int{-1, device.Slots} {
		if second.Follow(0, first, slot) == nil || second.Follow(slot, first, 0) == nil {
			t.Errorf("slot %d can be followed, or follows", slot)
		}
	}
	if err := second.Follow(0, nil, 0); err == nil || errors.Is(err, device.ErrLost) {
		t.Errorf("follow no device: %v", err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	must.OK(t, err)
}
