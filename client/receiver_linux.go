package client

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// receiveMessagesMax is the max number of messages per system call.
const receiveMessagesMax = 8

// receiver reads datagrams from the socket, many per system call. One goroutine
// uses it. Memory that no message reaches is never touched, so its 512 KiB cost
// little.
type receiver struct {
	raw      syscall.RawConn
	messages [receiveMessagesMax]message
	vectors  [receiveMessagesMax]unix.Iovec
	control  [receiveMessagesMax][controlBytes]byte
	memory   []byte

	read     func(fd uintptr) bool // the system call, built once
	received int
	errno    syscall.Errno
}

func newReceiver(raw syscall.RawConn) *receiver {
	in := &receiver{raw: raw, memory: make([]byte, receiveMessagesMax*messageBytes)}
	_ = raw.Control(func(fd uintptr) {
		// A kernel that cannot pack datagrams delivers them one by one.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_GRO, 1)
	})
	in.read = func(fd uintptr) bool {
		for i := range in.messages {
			in.vectors[i] = vector(in.buffer(i))
			in.messages[i] = message{}
			in.messages[i].gather(in.vectors[i : i+1])
			in.messages[i].control(in.control[i][:])
		}
		in.received, in.errno = receiveMessages(fd, in.messages[:])
		return in.errno != unix.EAGAIN
	}
	return in
}

func (in *receiver) buffer(i int) []byte { return in.memory[i*messageBytes:][:messageBytes] }

func (in *receiver) receive(handle func(datagram []byte, at int64)) error {
	if err := in.raw.Read(in.read); err != nil {
		return fmt.Errorf("receive datagrams: %w", err)
	}
	if in.errno == unix.EINTR {
		return nil
	}
	if in.errno != 0 {
		return in.errno
	}
	at := nanotime()
	for i := range in.received {
		m := &in.messages[i]
		bytes := in.buffer(i)[:m.size]
		for size := m.segmentSize(in.control[i][:]); len(bytes) > 0; {
			n := min(size, len(bytes))
			handle(bytes[:n], at)
			bytes = bytes[n:]
		}
	}
	return nil
}
