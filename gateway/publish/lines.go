package publish

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// standardOutput is the file that stands for the standard output of the process.
const standardOutput = "-"

// linesMode is the mode of a file of lines. It keeps out other users, because answers are about people
// in front of a camera.
const linesMode = 0o640

// lines appends messages to a file. If the file is renamed or removed, as log rotation does, it
// makes a new one.
type lines struct {
	path string
	file *os.File
	torn bool // the last line is not complete
}

func (l *lines) open(context.Context) error {
	if l.path == standardOutput {
		// A write to a broken pipe ends the process if the descriptor is 1.
		fd, err := unix.FcntlInt(os.Stdout.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return fmt.Errorf("open standard output: %w", err)
		}
		l.file = os.NewFile(uintptr(fd), "standard output")
		return nil
	}
	// A pipe without a reader would make open wait. A link, made by another user, could lead to any file.
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOFOLLOW, linesMode)
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("open file of answers: %s is a symbolic link; want the path of the file itself", l.path)
	}
	if err != nil {
		return fmt.Errorf("open file of answers: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", l.path)
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("open file of answers: %w", err)
	}
	l.file = file
	return nil
}

func (l *lines) lost() <-chan struct{} { return nil }

func (l *lines) close() {
	if l.file != nil {
		l.file.Close() // nothing is buffered
	}
	l.file = nil
}

func (l *lines) send(ctx context.Context, m message) error {
	if err := l.follow(ctx); err != nil {
		return err
	}
	text := make([]byte, 0, len(m.text)+2)
	if l.torn {
		text = append(text, '\n')
	}
	text = append(append(text, m.text...), '\n')
	n, err := l.file.Write(text)
	if n > 0 {
		l.torn = text[n-1] != '\n'
	}
	if err != nil {
		return fmt.Errorf("append answer: %w", err)
	}
	return nil
}

// follow opens the file again if its path names another one.
func (l *lines) follow(ctx context.Context) error {
	if l.path == standardOutput {
		return nil
	}
	opened, err := l.file.Stat()
	if err != nil {
		return fmt.Errorf("find file of answers: %w", err)
	}
	if named, err := os.Lstat(l.path); err == nil && os.SameFile(opened, named) {
		return nil
	}
	l.close()
	l.torn = false
	return l.open(ctx)
}
