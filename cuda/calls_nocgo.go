//go:build !cgo

package cuda

// The functions of calls_unsafe.go in a build without cgo. No function has an address, so only load is called.

const notLoaded = noCgo

func load(string) (path string, err error) { return "", ErrNoCgo }

func symbol(string) uint64 { return 0 }

func call(uint64, *byte, []uint64) ([2]uint64, int32) { return [2]uint64{}, noCgo }

func moduleLoad(uint64, []byte, []byte) ([2]uint64, int32) { return [2]uint64{}, noCgo }

func launch(uint64, uint64, [3]uint32, [3]uint32, uint32, uint64, *Args) int32 { return noCgo }

func graphNodes(uint64, uint64, []uint64) ([2]uint64, int32) { return [2]uint64{}, noCgo }

func resourceSplit(uint64, *resource, int, []resource, *resource) ([2]uint64, int32) {
	return [2]uint64{}, noCgo
}
