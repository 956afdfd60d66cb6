package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/control/runclock"
)

// control talks to a folder's daemon through the control program. The command goes to its
// standard input, and the answer comes from its standard output.
type control struct {
	program string
	folder  folder
	uuid    string
	timeout time.Duration // of one answer
	confine func(*exec.Cmd) error
}

// run runs a command as the daemon's user.
func (c control) run(cmd *exec.Cmd) error {
	if c.confine != nil {
		if err := c.confine(cmd); err != nil {
			return err
		}
	}
	return cmd.Run()
}

// findProgram returns the path of the control program, "" if there is none.
func findProgram(program string) string {
	names := []string{program}
	if program == "" {
		names = []string{controlProgram, filepath.Join("/usr/local/nvidia/bin", controlProgram)}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// environment is this process's environment, with the daemon's folders and the GPU in
// place of its MPS variables. A percentage among them would apply to every client.
func (c control) environment() []string {
	env := []string{
		"CUDA_MPS_PIPE_DIRECTORY=" + c.folder.pipe, "CUDA_MPS_LOG_DIRECTORY=" + c.folder.log, "CUDA_VISIBLE_DEVICES=" + c.uuid,
	}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "CUDA_MPS_") && !strings.HasPrefix(e, "CUDA_VISIBLE_DEVICES=") {
			env = append(env, e)
		}
	}
	return env
}

// grace is how long to wait for the rest of the output of a program that was killed.
const grace = 100 * time.Millisecond

// errNoAnswer is wrapped if the daemon exists and does not answer in time.
var errNoAnswer = errors.New("no answer")

// ask sends the daemon a command and returns the answer. It returns an error if there is
// no daemon, or it does not answer in time; the answer may give the reason.
func (c control) ask(ctx context.Context, command string) (string, error) {
	asked, cancel := runclock.Process().WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(asked, c.program)
	cmd.Env = c.environment()
	cmd.Stdin = strings.NewReader(command + "\n")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = grace
	err := c.run(cmd)
	answer := strings.TrimSpace(out.String())
	switch {
	case ctx.Err() != nil:
		return answer, fmt.Errorf("%s: %w", command, ctx.Err())
	case asked.Err() != nil:
		return answer, fmt.Errorf("%s: %w within %v", command, errNoAnswer, c.timeout)
	case err != nil && answer != "":
		return answer, fmt.Errorf("%s: %s", command, answer)
	case err != nil:
		return answer, fmt.Errorf("%s: %w", command, err)
	}
	return answer, nil
}

// after returns the control for the next question. If the last question was not answered,
// the timeout doubles. Otherwise a slow daemon's answer would never be received.
func (c control) after(err error) control {
	if errors.Is(err, errNoAnswer) {
		c.timeout *= 2
	}
	return c
}

// numbers parses the process ids in an answer, one per line.
func numbers(answer string) []int {
	var list []int
	for _, l := range strings.Fields(answer) {
		if n, err := strconv.Atoi(l); err == nil && n > 0 {
			list = append(list, n)
		}
	}
	return list
}

func (c control) servers(ctx context.Context) ([]int, error) {
	answer, err := c.ask(ctx, "get_server_list")
	return numbers(answer), err
}

func (c control) clients(ctx context.Context) ([]Client, error) {
	servers, err := c.servers(ctx)
	if err != nil {
		return nil, err
	}
	var list []Client
	for _, s := range servers {
		answer, err := c.ask(ctx, fmt.Sprintf("get_client_list %d", s))
		if err != nil {
			return list, err
		}
		for _, pid := range numbers(answer) {
			list = append(list, Client{PID: pid, Server: s})
		}
	}
	return list, nil
}

// daemonPID reads the pid file that the daemon writes.
func (c control) daemonPID() int {
	b, err := readOwn(filepath.Join(c.folder.pipe, controlProgram+".pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// adoptable returns the daemon that an orchestrator left behind, if it answers and serves
// the same GPU.
func (c control) adoptable(ctx context.Context) (pid int, ok bool) {
	pid = c.daemonPID()
	if pid == 0 || !isMPS(pid) || !alive(pid) {
		return 0, false
	}
	env := environOf(pid)
	if env["CUDA_MPS_PIPE_DIRECTORY"] != c.folder.pipe || env["CUDA_VISIBLE_DEVICES"] != c.uuid {
		return 0, false
	}
	if _, err := c.servers(ctx); err != nil {
		return 0, false
	}
	return pid, true
}

// endedAfter is how long a daemon must have no process before it counts as dead.
const endedAfter = 200 * time.Millisecond

// launch starts a daemon and waits until it answers. It stops waiting when ctx ends or the
// daemon dies. began is when the start began, for messages.
func (c control) launch(ctx context.Context, began time.Time) (int, error) {
	// A file and not a pipe: the daemon may keep it open. A new file: the daemon's user
	// owns the folder, and may have put a link there.
	path := filepath.Join(c.folder.log, "start.log")
	os.Remove(path)
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, &Problem{Why: fmt.Sprintf("start MPS daemon: %v", err)}
	}
	defer out.Close()
	// Each daemon starts with empty logs, or they would grow for ever.
	for _, name := range []string{"control.log", "server.log"} {
		os.Remove(c.folder.logFile(name))
	}
	cmd := exec.CommandContext(ctx, c.program, "-d")
	cmd.Env = c.environment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	if err := c.run(cmd); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("no end of it within %v", within(ctx, began))
		}
		return 0, &Problem{Why: "the MPS daemon does not start: " + c.reason(err)}
	}
	seen := runclock.Now()
	for last := errors.New("not tried"); ; {
		_, err := c.servers(ctx)
		pid := c.daemonPID()
		if err == nil && pid > 0 {
			return pid, nil
		}
		c = c.after(err)
		if err == nil {
			err = fmt.Errorf("%s.pid is missing", controlProgram)
		}
		if ctx.Err() == nil { // after the end of ctx every error is the same
			last = err
		}
		if pid > 0 && alive(pid) || len(belonging(c.folder)) > 0 {
			seen = runclock.Now()
		} else if runclock.Now()-seen > endedAfter {
			return 0, &Problem{Why: "the MPS daemon ended at once: " + c.reason(last)}
		}
		select {
		case <-ctx.Done():
			return 0, &Problem{Why: fmt.Sprintf("the MPS daemon gave no answer within %v: %s", within(ctx, began), c.reason(last))}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// within returns, for a message, how long a start has taken; after its deadline, the whole
// limit.
func within(ctx context.Context, began time.Time) time.Duration {
	if limit, ok := runclock.Limit(ctx); ok && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return limit
	}
	return time.Since(began).Round(10 * time.Millisecond)
}

// reason says in one line why a start failed: what the program printed, or else how it
// ended, and its log.
func (c control) reason(err error) string {
	text := err.Error()
	if b, err := readOwn(filepath.Join(c.folder.log, "start.log")); err == nil && len(bytes.TrimSpace(b)) > 0 {
		text = strings.Join(strings.Fields(string(b)), " ")
	}
	return text + c.folder.lastLog()
}
