//go:build !cgo

package mig

import "github.com/penstock/penstock/cuda/nvml"

// Open returns an error: the management library is a C library, and this build has no
// cgo.
func Open() (Session, error) {
	_, err := nvml.Open()
	return nil, err
}
