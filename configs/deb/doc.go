// Package deb has no code. Its folder makes the Debian package (`make deb`), and has the tests of it.
package deb
