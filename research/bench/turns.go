package bench

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock/penstock/cuda/swap"
)

//go:embed turns.py
var turnsScript string

// TurnsOptions says what `penstock-lab turns` measures.
type TurnsOptions struct {
	// Python runs the guests; it needs PyTorch. Library is the swap library.
	Python, Library string
	// LimitBytes is the memory that the two guests may have together; each has three quarters.
	LimitBytes int64
	// Each guest does Bursts bursts of Period, of which CPUPercent are CPU time.
	Bursts     int
	Period     time.Duration
	CPUPercent []int
	Rounds     int
}

// Turns is the report of `penstock-lab turns`.
type Turns struct {
	LimitBytes int64        `json:"limit_bytes"`
	GuestBytes int64        `json:"guest_bytes"`
	GPU        string       `json:"gpu"`
	PyTorch    string       `json:"pytorch"`
	Cases      []*TurnsCase `json:"cases"`
}

// TurnsCase has a value per round. Times are from the first command to the last answer of a guest; starts
// and allocations are not in them.
type TurnsCase struct {
	CPUPercent int `json:"cpu_percent"`
	// Sequential is one guest after the other without the library, Together both at once with it.
	Sequential []float64 `json:"sequential_s"`
	Together   []float64 `json:"together_s"`
	Swaps      []int     `json:"swaps"`
	// Overhead is one guest alone with the library / half of Sequential.
	Overhead []float64 `json:"alone_with_library_ratio"`
	Ratio    float64   `json:"ratio"` // median of sequential / median of together
	Goal     float64   `json:"goal"`
}

// turnsGuest is a process of turns.py.
type turnsGuest struct {
	*exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr *strings.Builder
}

// answer sends a line and returns the words of the next line that begins with a word.
func (g *turnsGuest) answer(line, word string) ([]string, error) {
	if line != "" {
		if _, err := fmt.Fprintln(g.in, line); err != nil {
			return nil, fmt.Errorf("write to guest: %w: %s", err, g.stderr)
		}
	}
	for g.out.Scan() {
		words := strings.Fields(g.out.Text())
		if len(words) > 0 && words[0] == word {
			return words, nil
		}
		if len(words) > 0 && words[0] == "wrong" {
			return nil, errors.New("its memory is not what it computed")
		}
	}
	return nil, fmt.Errorf("read %q from guest: it ended: %v: %s", word, g.Wait(), g.stderr)
}

func (g *turnsGuest) end() {
	g.in.Close()
	_ = g.Wait()
}

// startTurnsGuest starts a guest; socket is the server's, or "" for a guest without the library.
func startTurnsGuest(ctx context.Context, o TurnsOptions, socket string) (*turnsGuest, []string, error) {
	g := &turnsGuest{stderr: &strings.Builder{}}
	g.Cmd = exec.CommandContext(ctx, o.Python, "-c", turnsScript, fmt.Sprint(o.LimitBytes/4*3))
	g.Cmd.Env = os.Environ()
	if socket != "" {
		g.Cmd.Env = append(g.Cmd.Env, "LD_PRELOAD="+o.Library, "PENSTOCK_SWAP="+socket)
	}
	g.Cmd.Stderr = io.MultiWriter(g.stderr, os.Stderr)
	in, err := g.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := g.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	g.in, g.out = in, bufio.NewScanner(out)
	if err := g.Start(); err != nil {
		return nil, nil, fmt.Errorf("start guest: %w", err)
	}
	ready, err := g.answer("", "ready")
	return g, ready, err
}

// runTurnsGuests lets guests work at once, and returns the time until the last is done.
func runTurnsGuests(guests []*turnsGuest, command string) (time.Duration, error) {
	began := time.Now()
	answers := make(chan error)
	for _, g := range guests {
		go func() {
			_, err := g.answer(command, "done")
			answers <- err
		}()
	}
	var err error
	for range guests {
		err = errors.Join(err, <-answers)
	}
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	for _, g := range guests {
		if _, err := g.answer("check", "right"); err != nil {
			return 0, fmt.Errorf("compare memory of guest: %w", err)
		}
	}
	return took, nil
}

// RunTurns measures two guests that do not fit on the GPU together.
func RunTurns(ctx context.Context, o TurnsOptions, progress func(format string, args ...any)) (Turns, error) {
	r := Turns{LimitBytes: o.LimitBytes, GuestBytes: o.LimitBytes / 4 * 3}
	var err error
	if o.Library, err = filepath.Abs(o.Library); err != nil {
		return r, err
	}
	if _, err := os.Stat(o.Library); err != nil {
		return r, fmt.Errorf("find the swap library: %w; `make build` builds it", err)
	}
	dir, err := os.MkdirTemp("", "turns")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "swap")
	listener, err := swap.Listen(socket)
	if err != nil {
		return r, err
	}
	server := swap.New(swap.Config{LimitBytes: o.LimitBytes, UID: os.Getuid()})
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	defer func() { cancel(); <-served }()
	go watchTurns(ctx, server, progress)

	for _, percent := range o.CPUPercent {
		goal := 1.04
		if percent >= 50 {
			goal = 1.35
		}
		c := &TurnsCase{CPUPercent: percent, Goal: goal}
		r.Cases = append(r.Cases, c)
		for range o.Rounds {
			if err := r.round(ctx, o, c, server, socket, progress); err != nil {
				return r, fmt.Errorf("%d %% CPU time: %w", percent, err)
			}
		}
		sequential, _, _ := Spread(c.Sequential)
		together, _, _ := Spread(c.Together)
		c.Ratio = sequential / together
	}
	return r, nil
}

// watchTurns prints every 5 s which guest has the turn.
func watchTurns(ctx context.Context, server *swap.Server, progress func(string, ...any)) {
	for tick := time.NewTicker(5 * time.Second); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
			for _, g := range server.Guests() {
				progress("guest %d: %v, %d MiB, waiting %v, %d swaps", g.PID, g.Phase, g.MemoryBytes>>20, g.Waiting, g.Swaps)
			}
		}
	}
}

func (r *Turns) round(ctx context.Context, o TurnsOptions, c *TurnsCase, server *swap.Server, socket string, progress func(string, ...any)) error {
	cpu := o.Period * time.Duration(c.CPUPercent) / 100
	var command string

	// 1. One after the other, without the library. The first finds how much work takes that long.
	var sequential, alone time.Duration
	for i := range 3 {
		path := ""
		if i == 2 {
			path = socket
		}
		g, ready, err := startTurnsGuest(ctx, o, path)
		if err != nil {
			return err
		}
		if i == 0 {
			if len(ready) == 3 {
				r.PyTorch, r.GPU = ready[1], ready[2]
			}
			words, err := g.answer(fmt.Sprintf("steps %f", (o.Period-cpu).Seconds()), "steps")
			if err != nil {
				return err
			}
			command = fmt.Sprintf("run %d %s %f", o.Bursts, words[len(words)-1], cpu.Seconds())
		}
		took, err := runTurnsGuests([]*turnsGuest{g}, command)
		g.end()
		if err != nil {
			return err
		}
		progress("%d %% CPU time: one guest%s: %.2f s", c.CPUPercent, map[bool]string{true: " with the library"}[i == 2], took.Seconds())
		if i < 2 {
			sequential += took
		} else {
			alone = took
		}
	}
	c.Sequential = append(c.Sequential, sequential.Seconds())
	c.Overhead = append(c.Overhead, 2*alone.Seconds()/sequential.Seconds())

	// 2. Both at once.
	var guests []*turnsGuest
	for range 2 {
		g, _, err := startTurnsGuest(ctx, o, socket)
		if err != nil {
			return err
		}
		defer g.end()
		guests = append(guests, g)
	}
	took, err := runTurnsGuests(guests, command)
	if err != nil {
		return err
	}
	swaps := 0
	for _, g := range server.Guests() {
		swaps += g.Swaps
		if len(g.UnknownCalls) > 0 {
			progress("passed without knowing them: %s", strings.Join(g.UnknownCalls, " "))
		}
	}
	c.Together = append(c.Together, took.Seconds())
	c.Swaps = append(c.Swaps, swaps)
	progress("%d %% CPU time: two guests at once: %.2f s, %d swaps; one after the other: %.2f s", c.CPUPercent, took.Seconds(), swaps, sequential.Seconds())
	return nil
}
