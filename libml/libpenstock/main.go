// Command libpenstock is libpenstock.so, libml for programs in other languages:
//
//	make build
//	gcc -o model model.c -Ilibml/capi -Lbin/lib -lpenstock
//
// libml/capi/penstock.h declares its functions.
package main

import (
	"fmt"
	"os"

	_ "github.com/penstock/penstock/libml/capi"
)

// A shared library does not run main.
func main() {
	fmt.Fprintln(os.Stderr, "libpenstock: build this library with -buildmode=c-shared, as `make build` does")
	os.Exit(1)
}
