// Strict runs go test and fails if a test fails or is skipped. CI uses it, because a
// test that is skipped there is skipped everywhere and protects nothing.
//
//	go run ./internal/testing/strict [-slow N] [arguments of go test]
//
// A test whose reason starts with "not on this machine" may be skipped: the kernel or
// the hardware lacks something that no package can install. Such tests are listed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// excused starts the reason of a test that may be skipped.
const excused = "not on this machine"

func main() {
	arguments, slow := os.Args[1:], 0
	if len(arguments) > 1 && arguments[0] == "-slow" {
		n, err := strconv.Atoi(arguments[1])
		if err != nil {
			fmt.Fprintf(os.Stderr, "strict: read -slow: %v\n", err)
			os.Exit(2)
		}
		arguments, slow = arguments[2:], n
	}

	command := exec.Command("go", append([]string{"test", "-json"}, arguments...)...)
	command.Stderr = os.Stderr
	events, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "strict: run go test: %v\n", err)
		os.Exit(2)
	}

	r := &report{out: os.Stdout, tests: map[string]*test{}}
	if err := r.read(events); err != nil {
		fmt.Fprintf(os.Stderr, "strict: read what go test wrote: %v\n", err)
		r.failed = true
	}
	if err := command.Wait(); err != nil {
		r.failed = true
	}

	r.summarize(slow)
	if r.failed || len(r.skipped) > 0 {
		os.Exit(1)
	}
}

// event is one line of go test -json (cmd/test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
	Output  string
}

// test is a running test or, if its name is empty, the output of a package itself.
type test struct {
	output []string
}

// done is a completed test.
type done struct {
	name    string
	seconds float64
	reason  string
}

// report collects the events of one run.
type report struct {
	out     io.Writer
	tests   map[string]*test // by package and name
	ended   []done
	skipped []done
	allowed []done
	failed  bool
}

// read prints the output of failed tests, and each package's result as it arrives.
func (r *report) read(events io.Reader) error {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(r.out, lines.Text()) // output of go test itself, such as that of a failed build
			continue
		}
		r.add(e)
	}

	return lines.Err()
}

func (r *report) add(e event) {
	key := e.Package + " " + e.Test
	t := r.tests[key]
	if t == nil {
		t = &test{}
		r.tests[key] = t
	}

	switch e.Action {
	case "output", "build-output":
		t.output = append(t.output, e.Output)
		if e.Action == "build-output" || e.Test == "" && result.MatchString(e.Output) {
			fmt.Fprint(r.out, e.Output)
		}
	case "pass", "fail", "skip":
		d := done{name: short(e.Package) + "." + e.Test, seconds: e.Elapsed}
		switch {
		case e.Action == "fail":
			r.failed = true
			fmt.Fprint(r.out, strings.Join(t.output, ""))
		case e.Action == "skip" && e.Test != "":
			d.reason = reason(t.output)
			if strings.HasPrefix(d.reason, excused) {
				r.allowed = append(r.allowed, d)
			} else {
				r.skipped = append(r.skipped, d)
			}
		}
		if e.Test != "" && !strings.Contains(e.Test, "/") {
			r.ended = append(r.ended, d)
		}
		delete(r.tests, key)
	}
}

// result matches the line that go test prints per package.
var result = regexp.MustCompile(`^(ok  |FAIL|---|\?   )\t?`)

// place matches file.go:12: before a test's message.
var place = regexp.MustCompile(`^\s*[\w.]+\.go:\d+: `)

// reason returns the last message of a skipped test.
func reason(output []string) (last string) {
	for _, line := range output {
		if p := place.FindString(line); p != "" {
			last = strings.TrimSpace(line[len(p):])
		}
	}
	return last
}

// short returns a package's path inside this module.
func short(path string) string {
	_, inside, found := strings.Cut(path, "/penstock/penstock/")
	if !found {
		return path
	}
	return inside
}

func (r *report) summarize(slow int) {
	slices.SortStableFunc(r.ended, func(a, b done) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, d := range r.ended[:min(slow, len(r.ended))] {
		fmt.Fprintf(r.out, "%7.2f s  %s\n", d.seconds, d.name)
	}
	for _, d := range r.allowed {
		fmt.Fprintf(r.out, "skipped, allowed: %s: %s\n", d.name, d.reason)
	}
	for _, d := range r.skipped {
		fmt.Fprintf(r.out, "SKIPPED: %s: %s\n", d.name, d.reason)
	}
	if n := len(r.skipped); n > 0 {
		fmt.Fprintf(r.out, "FAIL: %d tests were skipped; install what they need\n", n)
	}
}
