// Image writes the container images of Penstock on Kubernetes, without a container engine: penstock-operator, penstock-agent,
// penstock-guests, and penstock, which is the node. `make -C cluster images` builds the programs and then runs it.
//
// An image is a file that `podman load`, `docker load`, `ctr images import` and `crane push` read. It has one layer, with the
// program and the shared libraries that it needs, as this machine has them. The same files give the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run() error {
	out := flag.String("o", "", "folder for the images")
	tag := flag.String("tag", "latest", "tag of the images")
	programs := flag.String("programs", "../bin/cluster", "folder with penstock-operator, penstock-agent and penstock-guests")
	node := flag.String("node", "../bin", "folder with penstock and lib/, as `make build` fills it")
	flag.Parse()
	if *out == "" {
		return fmt.Errorf("-o is missing: name a folder for the images")
	}
	created, err := sourceDate()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o777); err != nil {
		return err
	}

	const home = "/usr/lib/penstock/"
	libraries, err := filepath.Glob(filepath.Join(*node, "lib", "*.so"))
	if err != nil {
		return err
	}
	nodeFiles := map[string]string{home + "penstock": filepath.Join(*node, "penstock")}
	for _, library := range libraries {
		nodeFiles[home+"lib/"+filepath.Base(library)] = library
	}
	images := []Image{{Name: "penstock", Program: home + "penstock", Files: nodeFiles}}
	for _, name := range []string{"penstock-operator", "penstock-agent"} {
		program := "/usr/bin/" + name
		images = append(images, Image{Name: name, Program: program, Files: map[string]string{program: filepath.Join(*programs, name)}})
	}
	const guests = "/usr/bin/penstock-guests"
	images = append(images, Image{Name: "penstock-guests", Program: guests, Files: map[string]string{
		guests:                        filepath.Join(*programs, "penstock-guests"),
		home + "libpenstock-yield.so": filepath.Join(*node, "lib", "libpenstock-yield.so"),
	}})
	for _, image := range images {
		image.Created, image.Architecture = created, runtime.GOARCH
		file := filepath.Join(*out, image.Name+".tar")
		if err := image.Write(file, *tag); err != nil {
			return fmt.Errorf("write image %s: %w", image.Name, err)
		}
		fmt.Println(file)
	}
	return nil
}

// sourceDate returns the date of all files in images: that of the commit if make sets it.
func sourceDate() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q: want seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
