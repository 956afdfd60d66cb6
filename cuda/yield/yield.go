// Package yield makes guests leave the GPU to functions between two kernels. A library in C (folder library)
// is preloaded into each guest. It makes the GPU wait before a kernel until no function has a batch in
// flight, which package shm's busy word says.
//
//	function: Begin, batch, End  -->  busy word  <--  GPU, before each of the guest's kernels
package yield

import "github.com/penstock/penstock/cuda/preload"

// FileVariable is the environment variable that has the path of the busy word's file.
const FileVariable = "PENSTOCK_YIELD"

// Library returns the path of the library, which lies in the folder lib next to a binary.
func Library(binary string) (string, error) {
	return preload.Find(binary, "libpenstock-yield.so", "`make guest-libraries` builds it")
}
