package cuda

import (
	"reflect"
	"testing"
)

// TestLayouts compares the driver's structs with cuda.h 13.0.
func TestLayouts(t *testing.T) {
	for _, c := range []struct {
		value   any
		bytes   uintptr
		offsets map[string]uintptr
	}{
		{location{}, 8, map[string]uintptr{"id": 4}},
		{allocation{}, 32, map[string]uintptr{"handles": 4, "at": 8}},
		{access{}, 12, map[string]uintptr{"flags": 8}},
		{kernelNode{}, 72, map[string]uintptr{"grid": 8, "block": 20, "parameters": 40, "kernel": 56, "context": 64}},
		{copySide{}, 88, map[string]uintptr{"y": 8, "z": 16, "kind": 32, "host": 40, "device": 48}},
		{copyNode{}, 200, map[string]uintptr{"destination": 88, "width": 176, "height": 184, "depth": 192}},
		{setNode{}, 40, map[string]uintptr{"pitch": 8, "elementSize": 20, "width": 24, "height": 32}},
		{resource{}, 144, nil},
	} {
		kind := reflect.TypeOf(c.value)
		if kind.Size() != c.bytes {
			t.Errorf("%v has %d bytes, want %d", kind, kind.Size(), c.bytes)
		}
		for name, want := range c.offsets {
			if f, ok := kind.FieldByName(name); !ok || f.Offset != want {
				t.Errorf("%v.%s is at %d, want %d", kind, name, f.Offset, want)
			}
		}
	}
}
