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
)

// control talks to the daemon of a folder, through the control program: a command
// on its standard input, the answer on its standard output.
type control struct {
	program string
	folder  folder
	uuid    string
	timeout time.Duration // of one answer
}

// lookUp finds the control program, "" if there is none.
func lookUp(program string) string {
	names := []string{program}
	if program == "" {
		names = []string{Program, filepath.Join("/usr/local/nvidia/bin", Program)}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// environment is this process's, with the daemon's folders and the GPU in place of
// whatever it says of MPS: a percentage there would be every client's.
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

// grace is how long the output of a program that was killed is waited for.
const grace = 100 * time.Millisecond

// ask gives the daemon a command and returns what it says. A daemon that is not
// there, or does not answer in time, is an error; the answer may say why.
func (c control) ask(ctx context.Context, command string) (string, error) {
	asked, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(asked, c.program)
	cmd.Env = c.environment()
	cmd.Stdin = strings.NewReader(command + "\n")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = grace
	err := cmd.Run()
	answer := strings.TrimSpace(out.String())
	switch {
	case ctx.Err() != nil:
		return answer, fmt.Errorf("%s: %w", command, ctx.Err())
	case asked.Err() != nil:
		return answer, fmt.Errorf("%s: no answer within %v", command, c.timeout)
	case err != nil && answer != "":
		return answer, fmt.Errorf("%s: %s", command, answer)
	case err != nil:
		return answer, fmt.Errorf("%s: %w", command, err)
	}
	return answer, nil
}

// numbers are the process ids that an answer lists, one a line.
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
	b, err := os.ReadFile(filepath.Join(c.folder.pipe, Program+".pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// adoptable reports the daemon that an orchestrator left behind, if it answers and
// serves the same GPU.
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

// launch starts a daemon and waits until it answers.
func (c control) launch(ctx context.Context, timeout time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Not a pipe: the daemon may keep it open.
	out, err := os.Create(filepath.Join(c.folder.log, "start.log"))
	if err != nil {
		return 0, &Problem{Why: fmt.Sprintf("start MPS daemon: %v", err)}
	}
	defer out.Close()
	// Each daemon begins its logs anew, or they would grow for ever.
	for _, name := range []string{"control.log", "server.log"} {
		os.Remove(c.folder.logFile(name))
	}
	cmd := exec.CommandContext(ctx, c.program, "-d")
	cmd.Env = c.environment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return 0, &Problem{Why: "the MPS daemon does not start: " + c.reason(ctx, err, timeout)}
	}
	for last := errors.New("not asked"); ; {
		_, err := c.servers(ctx)
		if pid := c.daemonPID(); err == nil && pid > 0 {
			return pid, nil
		}
		if err == nil {
			err = fmt.Errorf("it writes no %s.pid", Program)
		}
		if ctx.Err() == nil { // after that all errors are the same
			last = err
		}
		select {
		case <-ctx.Done():
			return 0, &Problem{Why: fmt.Sprintf("the MPS daemon does not answer within %v: %s", timeout, c.reason(context.Background(), last, timeout))}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// reason is why a start failed, in one line: what the program said, or else how it
// ended, and its log.
func (c control) reason(ctx context.Context, err error, timeout time.Duration) string {
	text := err.Error()
	if ctx.Err() != nil {
		text = fmt.Sprintf("it hangs for %v", timeout)
	}
	if b, err := os.ReadFile(filepath.Join(c.folder.log, "start.log")); err == nil && len(bytes.TrimSpace(b)) > 0 {
		text = strings.Join(strings.Fields(string(b)), " ")
	}
	return text + c.folder.said()
}
