//go:build !cgo

package nvml

import "fmt"

// Open returns an error: the management library is a C library, and this build has no
// cgo.
func Open() (Session, error) {
	return nil, fmt.Errorf("%w: this binary was built without cgo (CGO_ENABLED=0)", ErrUnavailable)
}
