//go:build !cgo

package capi

// Without cgo there is nothing to export: libpenstock says so when it is run.
