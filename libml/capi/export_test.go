//go:build cgo

package capi

// SetRunning makes f the framework of the exported functions, until the returned function is
// called.
func SetRunning(f *Framework) (restore func()) {
	running.Store(f)
	return func() { running.Store(nil) }
}
