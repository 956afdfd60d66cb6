// Package capi offers libml to programs in other languages through the functions of penstock.h.
// libml/libpenstock builds it as a shared library.
//
// libml calls a callback in these steps:
//
//	libml ── Framework.InferBatch ── pcapi_infer (shim.c) ── table.infer_batch ──> the program
//	      <─ *Error ────────── code, and what penstock_error left on the thread ──┘
//
// The program calls libml in these:
//
//	penstock_stream (shim.c) ── pcapiStream (export_unsafe.go) ── Environment.Stream
//
// Memory: the table and the Environment are copied to C's memory. C gets no memory of Go's heap
// except libml's buffers, which are pinned from ConfigureBatch until they are replaced.
//
// Package capitest has callbacks that count and fail on demand.
package capi
