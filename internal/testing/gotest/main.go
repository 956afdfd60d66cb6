// Gotest runs go test, prints each package's result when it arrives, and says which tests run if
// nothing else is to be printed for a while.
//
//	go run ./internal/testing/gotest [-strict] [-slow N] [arguments of go test]
//
// With -strict it fails if a test is skipped. CI uses it, because a test that is skipped there is
// skipped everywhere and protects nothing. Two kinds of tests may be skipped, and are listed. If the
// reason starts with "not on this machine", the kernel or the hardware lacks something that no
// package can install. If it starts with "not with -short", another step of CI runs the test.
//
// While the tests run, Gotest keeps the ports of the built-in configuration, so a test that does not
// take free ones fails. The user may run a node on them.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// excused matches the reason of a test that may be skipped.
var excused = regexp.MustCompile(`^not (on this machine|with -short)`)

// progressEvery is how often the running tests are printed.
const progressEvery = 15 * time.Second

func main() {
	arguments, strict, slow := os.Args[1:], false, 0
	if len(arguments) > 0 && arguments[0] == "-strict" {
		arguments, strict = arguments[1:], true
	}
	if len(arguments) > 1 && arguments[0] == "-slow" {
		n, err := strconv.Atoi(arguments[1])
		if err != nil {
			fmt.Fprintf(os.Stderr, "gotest: read -slow: %v\n", err)
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
		fmt.Fprintf(os.Stderr, "gotest: run go test: %v\n", err)
		os.Exit(2)
	}

	holdPorts()
	r := &report{out: os.Stdout, strict: strict, tests: map[string]*test{}}
	if err := r.read(events, time.Tick(progressEvery)); err != nil {
		fmt.Fprintf(os.Stderr, "gotest: read what go test wrote: %v\n", err)
		r.failed = true
	}
	if err := command.Wait(); err != nil {
		r.failed = true
	}

	r.summarize(slow)
	if r.failed {
		os.Exit(1)
	}
}

// held are the ports of holdPorts, for the life of this process.
var held []io.Closer

// holdPorts opens the ports of the built-in configuration. A port that another program has serves the
// same purpose.
func holdPorts() {
	for _, port := range []int{9650, 9651} {
		if l, err := net.ListenTCP("tcp", &net.TCPAddr{Port: port}); err == nil {
			held = append(held, l)
		}
	}
	for _, port := range []int{5001, 5002, 5003} {
		if c, err := net.ListenUDP("udp", &net.UDPAddr{Port: port}); err == nil {
			held = append(held, c)
		}
	}
}

// event is one line of go test -json (cmd/test2json).
type event struct {
	Time    time.Time
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
	Output  string
}

// test is a running test or, if its name is empty, the output of a package itself.
type test struct {
	began  time.Time
	paused bool // waits for other parallel tests
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
	strict  bool             // a skipped test is a failure
	tests   map[string]*test // by package and name
	ended   []done
	skipped []done
	allowed []done
	failed  bool
}

// read prints the output of failed tests, and each package's result as it arrives. At each tick it
// prints which tests run.
func (r *report) read(events io.Reader, ticks <-chan time.Time) error {
	lines := make(chan []byte)
	var err error
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(events)
		scanner.Buffer(nil, 16<<20)
		for scanner.Scan() {
			lines <- slices.Clone(scanner.Bytes())
		}
		err = scanner.Err()
	}()

	for {
		select {
		case now := <-ticks:
			r.progress(now)
		case line, ok := <-lines:
			if !ok {
				return err
			}
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(r.out, "%s\n", line) // output of go test itself, such as that of a failed build
				continue
			}
			r.add(e)
		}
	}
}

// maxNamed is how many tests a line of progress names.
const maxNamed = 3

// progress prints how many tests have ended, and which ones have been running for the longest time.
func (r *report) progress(now time.Time) {
	type running struct {
		name string
		time time.Duration
	}
	var list []running
	for key, t := range r.tests {
		if path, name, _ := strings.Cut(key, " "); name != "" && !t.paused && !strings.Contains(name, "/") {
			list = append(list, running{short(path) + "." + name, now.Sub(t.began)})
		}
	}
	slices.SortFunc(list, func(a, b running) int { return cmp.Or(cmp.Compare(b.time, a.time), cmp.Compare(a.name, b.name)) })

	var text []string
	for _, t := range list[:min(maxNamed, len(list))] {
		text = append(text, fmt.Sprintf("%s (%.0f s)", t.name, t.time.Seconds()))
	}
	if more := len(list) - len(text); more > 0 {
		text = append(text, fmt.Sprintf("%d more", more))
	}
	if len(list) == 0 {
		text = []string{"go compiles"}
	}
	fmt.Fprintf(r.out, "… %d tests have ended; now: %s\n", len(r.ended), strings.Join(text, ", "))
}

func (r *report) add(e event) {
	key := e.Package + " " + e.Test
	t := r.tests[key]
	if t == nil {
		t = &test{}
		r.tests[key] = t
	}

	switch e.Action {
	case "run", "cont":
		t.began, t.paused = e.Time, false
	case "pause":
		t.paused = true
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
			if excused.MatchString(d.reason) {
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
var result = regexp.MustCompile(`^(ok  |FAIL|---)\t?`)

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
	if n := len(r.skipped); n > 0 && r.strict {
		r.failed = true
		fmt.Fprintf(r.out, "FAIL: %d tests were skipped; install what they need\n", n)
	}
}
