//go:build !cgo

package capi

// Without cgo there is nothing to export: libpenstock reports that when it is started.
