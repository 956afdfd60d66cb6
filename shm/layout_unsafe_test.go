package shm

import (
	"testing"
	"unsafe"
)

// Processes that were built elsewhere share the layout: any change here needs a
// new Version.
func TestLayout(t *testing.T) {
	var (
		fragment Fragment
		request  Request
		header   resultHeader
	)
	for name, test := range map[string]struct{ got, want uintptr }{
		"size of Fragment":      {unsafe.Sizeof(fragment), 16},
		"Fragment.Offset":       {unsafe.Offsetof(fragment.Offset), 0},
		"Fragment.Place":        {unsafe.Offsetof(fragment.Place), 8},
		"Fragment.Length":       {unsafe.Offsetof(fragment.Length), 12},
		"Fragment.Slab":         {unsafe.Offsetof(fragment.Slab), 14},
		"size of Request":       {unsafe.Sizeof(request), 64},
		"Request.ID":            {unsafe.Offsetof(request.ID), 0},
		"Request.Fragments":     {unsafe.Offsetof(request.Fragments), 4},
		"Request.Bytes":         {unsafe.Offsetof(request.Bytes), 8},
		"Request.Priority":      {unsafe.Offsetof(request.Priority), 12},
		"Request.LowestScore":   {unsafe.Offsetof(request.LowestScore), 14},
		"Request.FirstFragment": {unsafe.Offsetof(request.FirstFragment), 16},
		"Request.Complete":      {unsafe.Offsetof(request.Complete), 24},
		"Request.Deadline":      {unsafe.Offsetof(request.Deadline), 32},
		"Request.Address":       {unsafe.Offsetof(request.Address), 40},
		"Request.Client":        {unsafe.Offsetof(request.Client), 44},
		"Request.Stream":        {unsafe.Offsetof(request.Stream), 48},
		"Request.Format":        {unsafe.Offsetof(request.Format), 13},
		"Request.Width":         {unsafe.Offsetof(request.Width), 56},
		"Request.Height":        {unsafe.Offsetof(request.Height), 58},
		"Request.Stride":        {unsafe.Offsetof(request.Stride), 60},
		"size of resultHeader":  {unsafe.Sizeof(header), 64},
		"result length":         {unsafe.Offsetof(header.length), 0},
		"result modelVersion":   {unsafe.Offsetof(header.modelVersion), 4},
		"result status":         {unsafe.Offsetof(header.status), 8},
		"result kind":           {unsafe.Offsetof(header.kind), 9},
		"result batch":          {unsafe.Offsetof(header.batch), 10},
		"result dispatched":     {unsafe.Offsetof(header.dispatched), 16},
		"result gathered":       {unsafe.Offsetof(header.gathered), 24},
		"result inferred":       {unsafe.Offsetof(header.inferred), 32},
		"result place":          {unsafe.Offsetof(header.place), 40},
	} {
		if test.got != test.want {
			t.Errorf("%s is %d, want %d", name, test.got, test.want)
		}
	}
}

func TestViewBounds(t *testing.T) {
	mem := make([]byte, 64)
	for _, test := range []struct{ at, n int }{{-8, 1}, {64, 1}, {60, 1}, {0, 9}, {0, -1}, {1 << 62, 1}, {0, 1 << 62}, {3, 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d words at %d of 64 bytes given", test.n, test.at)
				}
			}()
			view[uint64](mem, test.at, test.n)
		}()
	}
	if got := view[uint64](mem, 64, 0); got != nil {
		t.Errorf("no words are %v", got)
	}
}
