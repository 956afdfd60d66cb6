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

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/internal/unixsock"
)

// The descriptors that a loader inherits.
const (
	loaderFile   = 3
	loaderSocket = 4
)

// loadTimeout is how long a loader may take: a context and a file of some gigabytes from
// a disk.
const loadTimeout = 30 * time.Second

// Load is the whole of a loader's process: the file that it inherits goes into the
// memory of the first GPU that it sees, and the memory's descriptor to whoever started
// it. What goes wrong is told to him as well.
func Load() error {
	end, err := unixsock.Conn(os.NewFile(loaderSocket, "holder"))
	if err != nil {
		return fmt.Errorf("load weights: %w", err)
	}
	defer end.Close()
	file := os.NewFile(loaderFile, "weights")
	defer file.Close()
	runtime.LockOSThread() // contexts are bound to threads
	defer runtime.UnlockOSThread()
	loaded, memory, err := load(file)
	if err != nil {
		a := answer{Version: version, Refused: line(err)}
		if errors.Is(err, cuda.ErrOutOfMemory) {
			a.Refused = outOfMemory + a.Refused
		}
		return errors.Join(err, send(end, a, nil))
	}
	return send(end, answer{Version: version, Loaded: loaded}, memory)
}

// outOfMemory begins the reason of a loader for whose file the GPU has no memory.
const outOfMemory = "out of memory: "

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// pieceBytes is what is read and sent at once: two of them, one is read while the other
// is on its way.
const pieceBytes = 8 << 20

// load puts a file into memory of its own. The context is left to the process's end.
func load(file *os.File) (l Loaded, memory *os.File, err error) {
	about, err := identify(file)
	if err != nil {
		return l, nil, fmt.Errorf("look at the file: %w", err)
	}
	c, err := openFirst()
	if err != nil {
		return l, nil, err
	}
	if err := c.Bind(); err != nil {
		return l, nil, err
	}
	arena, err := c.NewArena(int(about.bytes))
	if err != nil {
		return l, nil, err
	}
	defer func() { err = errors.Join(err, arena.Close()) }()
	stream, err := c.NewStream()
	if err != nil {
		return l, nil, err
	}
	defer stream.Synchronize() // a piece may be on its way to the arena when another cannot be read
	host, err := c.AllocateHost(2 * pieceBytes)
	if err != nil {
		return l, nil, err
	}
	l = Loaded{Bytes: about.bytes, MemoryBytes: int64(arena.Bytes())}
	var sent [2]cuda.Event
	for i := range sent {
		if sent[i], err = c.NewEvent(false); err != nil {
			return l, nil, err
		}
	}
	for at, turn := int64(0), 0; at < l.Bytes; turn ^= 1 {
		if err := sent[turn].Synchronize(); err != nil {
			return l, nil, err
		}
		piece := host[turn*pieceBytes:][:min(pieceBytes, l.Bytes-at)]
		if _, err := file.ReadAt(piece, at); err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("it has fewer than its %d bytes", l.Bytes)
			}
			return l, nil, fmt.Errorf("read the file: %w", err)
		}
		l.CRC = crc32.Update(l.CRC, castagnoli, piece)
		if err := stream.Copy(arena.Pointer()+cuda.Pointer(at), cuda.At(piece), len(piece)); err != nil {
			return l, nil, err
		}
		if err := sent[turn].Record(stream); err != nil {
			return l, nil, err
		}
		at += int64(len(piece))
	}
	if err := stream.Synchronize(); err != nil {
		return l, nil, err
	}
	fd, err := arena.ExportFD()
	if err != nil {
		return l, nil, err
	}
	return l, os.NewFile(uintptr(fd), "memory"), nil
}

// loader runs `command` with a file and a socket, and returns what it loaded.
type loader struct {
	command []string
}

func (l loader) load(ctx context.Context, file *os.File) (loaded Loaded, memory *os.File, err error) {
	ours, theirs, err := unixsock.Pair()
	if err != nil {
		return loaded, nil, err
	}
	end, err := unixsock.Conn(ours)
	if err != nil {
		theirs.Close()
		return loaded, nil, err
	}
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
	// The deadline is the process's: where it ends, so does the socket.
	var a answer
	memory, err = receive(end, &a)
	ended := cmd.Wait()
	switch {
	case ctx.Err() != nil: // late, or the holder ends
		err = context.Cause(ctx)
	case err != nil:
		err = fmt.Errorf("the loader ended without a word: %w", errors.Join(ended, err))
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
