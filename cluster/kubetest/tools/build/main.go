// Build is `make cluster-tools`: it builds the programs of a test cluster into the user's cache.
//
//	go run ./kubetest/tools/build FOLDER [NAME...]
//
// The folder is that of package tools. Without names, it builds all.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/penstock/penstock/cluster/kubetest/tools"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	if err := tools.Build(ctx, os.Args[1], os.Args[2:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cluster-tools:", err)
		os.Exit(1)
	}
}
