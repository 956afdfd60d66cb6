//go:build !cgo

// Package capitest needs cgo: this build has none.
package capitest
