// Mpsprogram is the fake programs of package mpsfake. The name that it runs under
// selects one.
package main

import "github.com/penstock/penstock/internal/testing/mpsfake"

func main() { mpsfake.Main() }
