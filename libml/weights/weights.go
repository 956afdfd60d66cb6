// Package weights keeps files in a GPU's memory for the processes of a node: each file
// once, whoever asks for it. A process of its own holds them, `penstock weights`:
//
//	inference function              holder                          loader (a moment)
//	1 Ask, and the file ──────────> peer and file are looked at
//	2                               the file is there, or ────────> 3 context, memory,
//	                                                                  the file into it
//	                                5 keeps the descriptor <─────── 4 its descriptor; ends
//	6 maps it read-only <────────── the memory's descriptor
//	7 hangs up, or dies ──────────> one fewer; with none for a while, the memory is freed
//
// The memory is an allocation of the driver's that a file descriptor keeps alive
// (cuMemExportToShareableHandle), so the holder needs no context: it takes nothing of the
// GPU for itself, and no fault and no MPS server that dies can take anything from it.
// A loader is no client of MPS and has touched nothing else.
//
// A file is told by what the kernel says of the descriptor that comes with the question
// (device, inode, size, times), never by a name: nobody gets at a file that he could not
// open, and one that is written anew is another.
//
// Who has mapped the memory keeps it, whatever becomes of the holder. A holder that is
// started again begins with nothing.
package weights

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/unixsock"
)

// version is spoken by both sides; others are refused.
const version = 1

// errRefused is returned by getWeights if the holder refuses; the text has its reason.
var errRefused = errors.New("the holder of weights refuses")

// errBadMessage is for what is no message of this protocol.
var errBadMessage = errors.New("no message of this protocol")

// ask is the first and only thing that a process says. The file comes with it.
type ask struct {
	Version int `json:"version"`
}

// answer comes with the memory's descriptor, or with none where it was refused.
type answer struct {
	Version int    `json:"version"`
	Refused string `json:"refused,omitempty"`
	Loaded
}

// Loaded is a file in a GPU's memory.
type Loaded struct {
	// Bytes are the file's, MemoryBytes those of the allocation: whole pages of the
	// driver's.
	Bytes       int64 `json:"bytes"`
	MemoryBytes int64 `json:"memory_bytes"`
	// CRC is the file's CRC-32C (Castagnoli), taken from what went to the GPU.
	CRC uint32 `json:"crc32c"`
}

// maxMessage is the longest message: an answer with its reason.
const maxMessage = 4 << 10

// maxReason bounds what is wrong in one line: JSON makes six bytes of some (\u003c), and the
// message has to hold it.
const maxReason = maxMessage/6 - 64

// sendTimeout is how long a peer may take to read: its socket's buffer is empty.
const sendTimeout = 2 * time.Second

// send writes one message, with a descriptor if file is not nil; the file stays the
// caller's.
func send(c *net.UnixConn, message any, file *os.File) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	if file == nil {
		return unixsock.Send(c, b)
	}
	return unixsock.Send(c, b, file)
}

// receive reads one message into message, and returns the file that came with it or nil.
// The caller owns the file.
func receive(c *net.UnixConn, message any) (file *os.File, err error) {
	text, files, err := unixsock.Receive(c, make([]byte, maxMessage), 1)
	if errors.Is(err, unixsock.ErrTooLong) {
		return nil, fmt.Errorf("%w: %w", errBadMessage, err)
	}
	if err != nil {
		return nil, err
	}
	if len(files) > 0 {
		file = files[0]
	}
	if err := json.Unmarshal(text, message); err != nil {
		if file != nil {
			file.Close()
		}
		return nil, fmt.Errorf("%w: %w", errBadMessage, err)
	}
	return file, nil
}

// identity tells a file from all others, and from itself written anew.
type identity struct {
	device, inode    uint64
	bytes            int64
	modified, change int64 // nanoseconds
}

// identify looks at an open file. It must be a regular one with something in it: others
// may block whoever reads them, or have no end.
func identify(f *os.File) (identity, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return identity{}, err
	}
	var about unix.Stat_t
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = unix.Fstat(int(fd), &about) }); err != nil {
		return identity{}, err
	}
	switch {
	case inner != nil:
		return identity{}, inner
	case about.Mode&unix.S_IFMT != unix.S_IFREG:
		return identity{}, errors.New("it is no regular file")
	case about.Size <= 0:
		return identity{}, errors.New("the file is empty")
	}
	return identity{uint64(about.Dev), about.Ino, about.Size, about.Mtim.Nano(), about.Ctim.Nano()}, nil
}

// line makes an error's text one line of bounded length.
func line(err error) string {
	text := []byte(err.Error())
	for i, b := range text {
		if b < ' ' {
			text[i] = ' '
		}
	}
	return strings.ToValidUTF8(string(text[:min(len(text), maxReason)]), "?")
}
