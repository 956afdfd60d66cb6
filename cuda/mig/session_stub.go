//go:build !cgo

package mig

import "github.com/penstock/penstock/cuda/nvml"

// Open says what is missing: the management library is a C library.
func Open() (Session, error) {
	_, err := nvml.Open()
	return nil, err
}
