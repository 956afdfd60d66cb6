// Package container has no code. Its folder has the configuration of the container that Containerfile
// builds (docs/operations.md), and the tests of both.
package container
