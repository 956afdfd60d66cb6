package floor

import (
	"sync/atomic"
	"unsafe"
)

// wordsIn maps the words onto a region of regionBytes, which begins on a page.
func wordsIn(mem []byte) words {
	_ = mem[regionBytes-1]
	return words{
		bell:   (*atomic.Uint32)(unsafe.Pointer(&mem[0])),
		answer: (*atomic.Uint32)(unsafe.Pointer(&mem[64])),
		stamp:  (*atomic.Int64)(unsafe.Pointer(&mem[128])),
	}
}
