// Package weights keeps files in a GPU's memory for the processes of a node: one copy per
// file, for all processes. A separate process, the weight server, holds them (`penstock
// weights`):
//
//	inference function              weight server                   loader (ends soon)
//	1 sends request and file ─────> checks peer and file
//	2                               file not held: ───────────────> 3 opens a context, copies
//	                                                                  the file to memory
//	                                5 keeps the descriptor <─────── 4 sends its descriptor
//	6 maps it read-only <────────── sends the memory's descriptor
//	7 closes, or ends ────────────> removes a user; later frees unused memory
//
// The memory is an allocation that a file descriptor keeps alive
// (cuMemExportToShareableHandle), so the server needs no context. It uses no other memory of
// the GPU, and neither a fault nor the end of an MPS server affects it. A loader is not a
// client of MPS and uses no other memory.
//
// The kernel's description of the descriptor (device, inode, size, times) identifies a file,
// never a name. So a process gets only files that it can open, and a file that was
// written again is another file.
//
// Processes that have mapped the memory keep it if the server ends. A restarted server holds
// no files.
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

// version of the protocol. Each side refuses another.
const version = 1

// errRefused is returned by getWeights if the weight server refuses. It wraps the reason.
var errRefused = errors.New("weight server refused")

// errBadMessage is returned for a message that does not follow the protocol.
var errBadMessage = errors.New("message does not follow the protocol")

// request is the only message of a process. The file comes with it.
type request struct {
	Version int `json:"version"`
}

// response comes with the memory's descriptor, unless the server refused.
type response struct {
	Version int    `json:"version"`
	Refused string `json:"refused,omitempty"`
	Loaded
}

// Loaded is a file in a GPU's memory.
type Loaded struct {
	// Bytes is the file's size, MemoryBytes that of the allocation: a multiple of the
	// driver's page size.
	Bytes       int64 `json:"bytes"`
	MemoryBytes int64 `json:"memory_bytes"`
	// CRC is the CRC-32C (Castagnoli) of the bytes that were copied to the GPU.
	CRC uint32 `json:"crc32c"`
}

// maxMessage is the length of the longest message: a response with its reason.
const maxMessage = 4 << 10

// maxReason bounds a reason, so that it fits a message: JSON encodes some bytes as six
// (\u003c).
const maxReason = maxMessage/6 - 64

// sendTimeout bounds a send. It is short because the socket's buffer is empty.
const sendTimeout = 2 * time.Second

// link is one end of a connection.
type link struct{ *unixsock.Link }

func newLink(c *net.UnixConn) link {
	return link{unixsock.NewLink(c, unixsock.Limits{SendBytes: maxMessage, ReceiveBytes: maxMessage, Files: 1})}
}

// send writes one message, with a descriptor if there is a file. The caller keeps the file.
func (l link) send(message any, file ...*os.File) error {
	if err := l.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	return l.Send(message, file...)
}

// receive reads one message into message. It returns the file that came with it, or nil. The
// caller owns the file.
func (l link) receive(message any) (file *os.File, err error) {
	text, files, err := l.Receive()
	if errors.Is(err, unixsock.ErrTooLong) {
		return nil, fmt.Errorf("%w: %w", errBadMessage, err)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, message); err != nil {
		unixsock.CloseAll(files)
		return nil, fmt.Errorf("%w: %w", errBadMessage, err)
	}
	if len(files) > 0 {
		file = files[0]
	}
	return file, nil
}

// Identity tells a file from all others, and from a later version of itself.
type Identity struct {
	Device, Inode    uint64
	Bytes            int64
	Modified, Change int64 // nanoseconds
}

// Identify returns the identity of an open file. It refuses empty files, and files that are
// not regular: a read of those may block, or have no end.
func Identify(f *os.File) (Identity, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return Identity{}, err
	}
	var about unix.Stat_t
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = unix.Fstat(int(fd), &about) }); err != nil {
		return Identity{}, err
	}
	switch {
	case inner != nil:
		return Identity{}, inner
	case about.Mode&unix.S_IFMT != unix.S_IFREG:
		return Identity{}, errors.New("not a regular file")
	case about.Size <= 0:
		return Identity{}, errors.New("the file is empty")
	}
	return Identity{uint64(about.Dev), about.Ino, about.Size, about.Mtim.Nano(), about.Ctim.Nano()}, nil
}

// line returns an error's text as one line of bounded length.
func line(err error) string {
	text := []byte(err.Error())
	for i, b := range text {
		if b < ' ' {
			text[i] = ' '
		}
	}
	return strings.ToValidUTF8(string(text[:min(len(text), maxReason)]), "?")
}
