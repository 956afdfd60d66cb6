package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Processes of functions show guests when they use the GPU. They share a file with a busy word: bit n is
// set while process n has a batch in flight. Before a kernel of a guest, the GPU itself waits until the word
// is 0 (package cuda/yield). So neither side makes a system call.
//
//	process                                   manager                      guest's stream
//	Open   lock a byte of the file, n
//	Begin  set bit n                                                       the next kernel waits
//	End    the last batch: clear bit n                                     it begins
//	is killed: the kernel unlocks the byte    Sweep: clear unlocked bits   it begins
//
// Processes that are never idle together would stop guests for ever. After maxBusy without a pause they set
// no bit for minPause.

// BusyBits is the max number of processes with a bit.
const BusyBits = 64

const (
	maxBusy  = 100 * time.Millisecond
	minPause = 20 * time.Millisecond
)

// The file of the busy word. Each part begins a cache line.
const (
	atBusyWord  = 0 * lineBytes // u64, which guests read
	atBusyTimes = 1 * lineBytes // busyTimes
	busyBytes   = 2 * lineBytes
)

// busyTimes are times of Now.
type busyTimes struct {
	since  atomic.Int64 // when the word became other than 0
	resume atomic.Int64 // no bit is set before
}

type busyWords struct {
	word  *atomic.Uint64
	times *busyTimes
}

func busyOf(mem []byte) busyWords {
	return busyWords{word64(mem, atBusyWord), &view[busyTimes](mem, atBusyTimes, 1)[0]}
}

// pauses reports whether guests have their turn now.
func (w *busyWords) pauses(now int64) bool {
	// A faulty process may have written any time.
	if resume := w.times.resume.Load(); now < resume && resume <= now+int64(minPause) {
		return true
	}
	if w.word.Load() == 0 || now-w.times.since.Load() < int64(maxBusy) {
		return false
	}
	w.times.resume.Store(now + int64(minPause))
	return true
}

// lockBit locks a bit's byte of the file. The lock belongs to the open file, so a process that opens
// the file again does not have it (fcntl(2), open file description locks).
func lockBit(f *os.File, bit int) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(bit), Len: 1}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
}

// bitLocked reports whether another open file has a bit's lock.
func bitLocked(f *os.File, bit int) (bool, error) {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(bit), Len: 1}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock)
	return lock.Type != unix.F_UNLCK, err
}

// BusyFile is the manager's end of a file of the busy word. Any goroutine may call its methods.
type BusyFile struct {
	region *Region
	words  busyWords
}

// OpenBusyFile takes ownership of a file, which may be new. It lets all users read it.
func OpenBusyFile(f *os.File) (*BusyFile, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(f.Fd()), &st)
	if err == nil {
		err = f.Truncate(int64(max(int(st.Blksize), os.Getpagesize()))) // Map wants whole pages
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare busy file: %w", err), f.Close())
	}
	region, err := Map(f, busyBytes, true)
	if err != nil {
		return nil, fmt.Errorf("map busy file: %w", err)
	}
	return &BusyFile{region: region, words: busyOf(region.Bytes())}, nil
}

// File opens the file again, for a process. The caller closes it after the process has it.
func (b *BusyFile) File() (*os.File, error) {
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", b.region.File().Fd()), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open busy file again: %w", err)
	}
	return f, nil
}

// Sweep clears the bits of processes that have ended.
func (b *BusyFile) Sweep() error {
	word := b.words.word.Load()
	for bit := range BusyBits {
		if word>>bit&1 == 0 {
			continue
		}
		locked, err := bitLocked(b.region.File(), bit)
		if err != nil {
			return fmt.Errorf("sweep busy word: %w", err)
		}
		if !locked {
			b.words.word.And(^(uint64(1) << bit))
		}
	}
	return nil
}

// Close unmaps the file. Processes and guests keep their mappings.
func (b *BusyFile) Close() error { return b.region.Close() }

// BusyBit is a process's bit. Any goroutine may call its methods.
type BusyBit struct {
	region *Region
	words  busyWords
	mask   uint64

	mu      sync.Mutex // guards batches, and the bit's changes
	batches int        // that set the bit
}

// ErrNoBit is wrapped by OpenBusyBit if BusyBits processes have one.
var ErrNoBit = errors.New("all bits are in use")

// OpenBusyBit maps the file that BusyFile.File opened for this process, and takes a bit. It takes
// ownership of the file.
func OpenBusyBit(f *os.File) (*BusyBit, error) {
	for bit := range BusyBits {
		err := lockBit(f, bit)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock bit of the busy word: %w", err), f.Close())
		}
		region, err := Map(f, busyBytes, true)
		if err != nil {
			return nil, fmt.Errorf("map busy file: %w", err)
		}
		b := &BusyBit{region: region, words: busyOf(region.Bytes()), mask: 1 << bit}
		b.words.word.And(^b.mask) // a process that was killed may have left it
		return b, nil
	}
	return nil, errors.Join(fmt.Errorf("take one of %d bits of the busy word: %w", BusyBits, ErrNoBit), f.Close())
}

// Begin sets the bit for a batch that begins, unless guests have their turn, and reports whether it did.
// If so, the caller calls End when the batch has ended.
func (b *BusyBit) Begin(now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.words.pauses(now) {
		return false
	}
	b.batches++
	if b.words.word.Or(b.mask) == 0 {
		b.words.times.since.Store(now)
	}
	return true
}

// End ends a batch for which Begin has set the bit.
func (b *BusyBit) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.batches--; b.batches == 0 {
		b.words.word.And(^b.mask)
	}
}

// Close clears the bit and gives it back. No batch is in flight.
func (b *BusyBit) Close() error {
	b.words.word.And(^b.mask)
	return b.region.Close()
}
