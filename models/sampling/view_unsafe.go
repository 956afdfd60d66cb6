package sampling

import "unsafe"

// view returns the memory of a line.
func view(line []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(line))), len(line)*int(unsafe.Sizeof(line[0])))
}
