// Command libpenstock is libpenstock.so, libml for programs that are not written in Go:
//
//	make build
//	gcc -o model model.c -Ilibml/capi -Lbin/lib -lpenstock
//
// libml/capi/penstock.h says what is in it.
package main

import (
	"fmt"
	"os"

	_ "github.com/penstock/penstock/libml/capi"
)

// main is not what a shared library runs.
func main() {
	fmt.Fprintln(os.Stderr, "libpenstock: this is a library: build it with -buildmode=c-shared, as `make build` does")
	os.Exit(1)
}
