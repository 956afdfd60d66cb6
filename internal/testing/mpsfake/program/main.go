// Program is the fake programs of package mpsfake, by the name that it is run under.
package main

import "github.com/penstock/penstock/internal/testing/mpsfake"

func main() { mpsfake.Main() }
