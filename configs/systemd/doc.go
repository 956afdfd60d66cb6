// Package systemd has no code. Its folder has the unit of a node, its user and its configuration
// (docs/operations.md), and the tests of them.
package systemd
