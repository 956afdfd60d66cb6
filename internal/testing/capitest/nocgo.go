//go:build !cgo

// Package capitest needs cgo, which this build does not have.
package capitest
