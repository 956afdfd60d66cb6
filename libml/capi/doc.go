// Package capi is libml for programs that are not written in Go: what
// penstock.h declares. libml/capi/libpenstock makes the shared library of it.
//
// The way of a call of libml's to a callback:
//
//	libml ── Framework.InferBatch ── pcapi_infer (shim.c) ── table.infer_batch ──> the program
//	      <─ *Error ────────── code, and what penstock_error left on the thread ──┘
//
// and of the program's to libml:
//
//	penstock_stream (shim.c) ── pcapiStream (export_unsafe.go) ── Environment.Stream
//
// Memory: the table is copied to C's memory, with all that Environment says; nothing of
// Go's heap is handed on but libml's own buffers, which are pinned from ConfigureBatch
// until they are replaced.
//
// capitest has callbacks that count and fail to order.
package capi
