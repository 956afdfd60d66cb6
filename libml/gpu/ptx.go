package gpu

import (
	_ "embed"
	"fmt"
	"strings"
)

// ptx is the output of ptx.sh for gather.cu: a header, then self-contained
// kernels.
//
//go:embed gather.ptx
var ptx string

// entry begins a kernel, and entryEnd ends it.
const (
	entry    = ".visible .entry "
	entryEnd = "\n}\n"
)

// kernels returns the part of the PTX with these kernels only: a driver takes
// forty milliseconds to compile each.
func kernels(names ...string) ([]byte, error) {
	header, _, _ := strings.Cut(ptx, entry)
	part := []byte(header)
	for _, name := range names {
		_, after, found := strings.Cut(ptx, entry+name+"(")
		body, _, ends := strings.Cut(after, entryEnd)
		if !found || !ends {
			return nil, fmt.Errorf("find kernel %q in gather.ptx: no such kernel", name)
		}
		part = append(part, entry+name+"("+body+entryEnd...)
	}
	return part, nil
}
