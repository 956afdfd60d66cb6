//go:build !cgo

package nvml

import "fmt"

// Open says what is missing: the management library is a C library.
func Open() (Session, error) {
	return nil, fmt.Errorf("%w: this binary was built without cgo (CGO_ENABLED=0)", ErrUnavailable)
}
