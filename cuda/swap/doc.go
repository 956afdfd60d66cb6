// Package swap lets programs share a GPU whose memory does not hold all of them. A library in C
// (folder library) is preloaded into each program. It keeps the program's device memory in
// blocks that can leave the GPU and come back to the same addresses. The Server, one per node,
// tells the libraries whose turn it is. Package turns has the rules.
//
//	library in a program  <-- Unix socket -->  Server  -->  turns.Lock, one per GPU
//
// Tests build the library, a driver that needs no GPU, and guests in C (testdata).
package swap
