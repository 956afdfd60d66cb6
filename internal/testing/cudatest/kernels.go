package cudatest

import _ "embed"

// PTX has the suite's kernels, written by hand:
//
//	penstock_fill(out *u32, value, count u32)   out[i] = value + i, thread by thread
//	penstock_where(out *u32, cycles u32)        out[block] = the multiprocessor it ran on, after so long
//	penstock_pair({out *u32, a, b u32})         *out = a + b: a struct by value
//	penstock_fault(out *u32)                    *out = 1
//
//go:embed kernels.ptx
var PTX []byte

// Kernels does on the fake driver what PTX does on a GPU: for cudafake.Kernels.
//
//go:embed twins/kernels.c
var Kernels string
