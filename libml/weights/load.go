package weights

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/unixsock"
)

// The descriptors that a loader inherits.
const (
	loaderFile   = 3
	loaderSocket = 4
)

// loadTimeout bounds the time of a loader, which opens a context and reads some gigabytes
// from a disk.
const loadTimeout = 30 * time.Second

// Load is all that a loader's process does. It copies the file that it inherits to memory of
// the first GPU that it sees, and sends the memory's descriptor to the weight server that
// started it. It also sends the text of an error there.
func Load() error {
	conn, err := unixsock.Conn(os.NewFile(loaderSocket, "weight server"))
	if err != nil {
		return fmt.Errorf("load weights: %w", err)
	}
	end := newLink(conn)
	defer end.Close()
	file := os.NewFile(loaderFile, "weights")
	defer file.Close()
	runtime.LockOSThread() // contexts are bound to threads
	defer runtime.UnlockOSThread()
	loaded, memory, err := load(file)
	if err != nil {
		a := response{Version: version, Refused: line(err)}
		if errors.Is(err, cuda.ErrOutOfMemory) {
			a.Refused = outOfMemory + a.Refused
		}
		return errors.Join(err, end.send(a))
	}
	return end.send(response{Version: version, Loaded: loaded}, memory)
}

// outOfMemory begins the reason of a loader that found no memory for its file.
const outOfMemory = "out of memory: "

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// load copies a file to newly allocated memory. The context stays open until the process ends.
func load(file *os.File) (l Loaded, memory *os.File, err error) {
	about, err := Identify(file)
	if err != nil {
		return l, nil, fmt.Errorf("check the file: %w", err)
	}

	c, err := openFirst()
	if err != nil {
		return l, nil, err
	}
	if err := c.Bind(); err != nil {
		return l, nil, err
	}
	arena, err := c.NewArena(int(about.Bytes))
	if err != nil {
		return l, nil, err
	}
	defer func() { err = errors.Join(err, arena.Close()) }()

	l = Loaded{Bytes: about.Bytes, MemoryBytes: int64(arena.Bytes())}
	if l.CRC, err = Upload(c, file, arena.Pointer(), l.Bytes); err != nil {
		return l, nil, err
	}
	fd, err := arena.ExportFD()
	if err != nil {
		return l, nil, err
	}
	return l, os.NewFile(uintptr(fd), "memory"), nil
}

// chunkBytes is the max size of one read and one copy. Upload has two chunks: it reads one while
// the GPU copies the other.
const chunkBytes = 8 << 20

// Upload copies so many bytes of a file to the GPU and returns their CRC-32C (Castagnoli). It has ended
// all copies when it returns. The calling thread must be bound to the context. Without pinned memory it
// copies more slowly.
func Upload(c *cuda.Context, file *os.File, to cuda.Pointer, bytes int64) (crc uint32, err error) {
	// Nothing is released on a lost device: that may wait for ever.
	release := func(f func() error) {
		if !errors.Is(err, cuda.ErrLost) {
			err = errors.Join(err, f())
		}
	}
	stream, err := c.NewStream()
	if err != nil {
		return 0, err
	}
	defer release(stream.Destroy)
	each := min(chunkBytes, bytes)
	host, free, err := allocateStage(c, int(2*each))
	if err != nil {
		return 0, err
	}
	defer release(free)
	defer release(stream.Synchronize) // after an error, a copy may still run
	var sent [2]cuda.Event            // each records the end of its chunk's copy
	for i := range sent {
		if sent[i], err = c.NewEvent(false); err != nil {
			return 0, err
		}
		defer release(sent[i].Destroy)
	}

	for at, turn := int64(0), 0; at < bytes; turn ^= 1 {
		if err := sent[turn].Synchronize(); err != nil {
			return 0, err
		}
		chunk := host[int64(turn)*each:][:min(each, bytes-at)]
		if _, err := file.ReadAt(chunk, at); err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("it has fewer than its %d bytes", bytes)
			}
			return 0, fmt.Errorf("read the file: %w", err)
		}
		crc = crc32.Update(crc, castagnoli, chunk)
		if err := stream.Copy(to+cuda.Pointer(at), cuda.At(chunk), len(chunk)); err != nil {
			return 0, err
		}
		if err := sent[turn].Record(stream); err != nil {
			return 0, err
		}
		at += int64(len(chunk))
	}
	return crc, stream.Synchronize()
}

// allocateStage returns host memory for copies: pinned, or pageable if the driver refuses that.
func allocateStage(c *cuda.Context, bytes int) (host []byte, free func() error, err error) {
	host, err = c.AllocateHost(bytes)
	if err == nil || errors.Is(err, cuda.ErrLost) {
		return host, func() error { return c.FreeHost(host) }, err
	}
	host, err = unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	return host, func() error { return unix.Munmap(host) }, err
}

// loader starts a loader's process: command, with a file and a socket.
type loader struct {
	command []string
}

// load runs the process, and returns the file's memory. The caller owns the descriptor.
func (l loader) load(ctx context.Context, file *os.File) (loaded Loaded, memory *os.File, err error) {
	ours, theirs, err := unixsock.Pair()
	if err != nil {
		return loaded, nil, err
	}
	conn, err := unixsock.Conn(ours)
	if err != nil {
		theirs.Close()
		return loaded, nil, err
	}
	end := newLink(conn)
	defer end.Close()
	late := fmt.Errorf("the loader took more than %v", loadTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, loadTimeout, late)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.command[0], l.command[1:]...)
	cmd.ExtraFiles = []*os.File{file, theirs}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return loaded, nil, fmt.Errorf("start a loader: %w", err)
	}

	// The socket needs no deadline: it ends with the process, which has one.
	var a response
	memory, err = end.receive(&a)
	ended := cmd.Wait()
	switch {
	case ctx.Err() != nil: // timeout, or the weight server stops
		err = context.Cause(ctx)
	case err != nil:
		err = fmt.Errorf("the loader ended without an answer: %w", errors.Join(ended, err))
	case a.Refused != "":
		err = errors.New(a.Refused)
	case a.Version != version || memory == nil || a.Bytes <= 0:
		err = errBadMessage
	}
	if err != nil && memory != nil {
		memory.Close()
		memory = nil
	}
	return a.Loaded, memory, err
}
