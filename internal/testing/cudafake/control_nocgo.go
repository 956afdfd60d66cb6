//go:build !cgo

package cudafake

import "errors"

// Without cgo, package cuda loads no library, so there is no fake driver to
// control.
const canControl = false

func set(Setting) error {
	return errors.New("this build has no cgo, which the fake driver is called with")
}

func reset() {}

func now() Accounts { return Accounts{} }

func launches() []Launch { return nil }
