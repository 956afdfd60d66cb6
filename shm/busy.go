package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
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
//	Open   lock a byte of a second file, n
//	Begin  set bit n                                                       the next kernel waits
//	End    the last batch: clear bit n                                     it begins
//	is killed: the kernel unlocks the byte    Sweep: clear unlocked bits   it begins
//
// The file with the word has a path, because processes that a guest starts look for it later. So its size
// cannot be sealed. If a process shrinks it, an access would end the others (SIGBUS). They recover from that,
// and no longer use the word. The manager alone passes on the file with the locks.
//
// Processes that are never idle together would stop guests for ever. After maxBusy they set no bit until
// guests had minPause. A shorter idle time makes up for a part of maxBusy.

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

// busyTimes says how long the word was not 0. Times are of Now.
type busyTimes struct {
	since  atomic.Int64 // when the word left 0, less the busy time before that idle time did not make up for
	idle   atomic.Int64 // when it became 0
	paused atomic.Bool  // no process sets its bit
	_      [3]uint8
}

type busyWords struct {
	word  *atomic.Uint64
	times *busyTimes
}

func busyOf(mem []byte) busyWords {
	return busyWords{word64(mem, atBusyWord), &view[busyTimes](mem, atBusyTimes, 1)[0]}
}

// busyTime returns the time for which guests have waited without making up for it.
func (w *busyWords) busyTime(now int64) int64 {
	since, idle := w.times.since.Load(), w.times.idle.Load()
	if since < 0 || since > now { // of a faulty process
		since = now
	}
	if w.word.Load() != 0 {
		return now - since
	}
	if idle < since || idle > now {
		idle = since
	}
	return max(0, min(idle-since, int64(maxBusy))-int64(maxBusy/minPause)*(now-idle))
}

// begin sets a bit, unless guests have their pause.
func (w *busyWords) begin(now int64, bit uint64) bool {
	busy := w.busyTime(now)
	switch {
	case busy >= int64(maxBusy):
		w.times.paused.Store(true)
	case busy == 0:
		w.times.paused.Store(false)
	}
	if w.times.paused.Load() {
		return false
	}
	if w.word.Load() == 0 {
		w.times.since.Store(now - busy) // before the bit, which makes others read it
	}
	w.word.Or(bit)
	return true
}

// end clears a bit.
func (w *busyWords) end(now int64, bit uint64) {
	if w.word.Load() == bit {
		w.times.idle.Store(now)
	}
	w.word.And(^bit)
}

// guard calls f. It returns an error if f uses memory that the file no longer has.
func guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if reason := recover(); reason != nil {
			fault, ok := reason.(interface{ Addr() uintptr })
			if !ok {
				panic(reason)
			}
			err = fmt.Errorf("use busy word: its file was shrunk (fault at %#x); restart the node", fault.Addr())
		}
	}()
	f()
	return nil
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

// BusyFile is the manager's end of the busy word. Any goroutine may call its methods.
type BusyFile struct {
	region, locks *Region
	words         busyWords
}

// OpenBusyFile takes ownership of a file, which may be new. It lets all users read the file, and clears all
// bits.
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
	locks, err := Create("penstock-busy-locks", BusyBits, Options{Writable: true})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make locks of the busy word: %w", err), region.Close())
	}
	b := &BusyFile{region: region, locks: locks, words: busyOf(region.Bytes())}
	if err := guard(func() { b.words.word.Store(0) }); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Files returns the file of the word, which BusyFile owns, and that of the locks, which the caller closes after
// a process has got it.
func (b *BusyFile) Files() (word, locks *os.File, err error) {
	locks, err = os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", b.locks.File().Fd()), os.O_RDWR, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open locks of the busy word again (is /proc mounted?): %w", err)
	}
	return b.region.File(), locks, nil
}

// Sweep clears the bits of processes that have ended.
func (b *BusyFile) Sweep() error {
	var word uint64
	if err := guard(func() { word = b.words.word.Load() }); err != nil {
		return err
	}
	for bit := range BusyBits {
		if word>>bit&1 == 0 {
			continue
		}
		locked, err := bitLocked(b.locks.File(), bit)
		if err != nil {
			return fmt.Errorf("sweep busy word: %w", err)
		}
		if locked {
			continue
		}
		// A process that takes the bit meanwhile loses it for its first batch.
		if err := guard(func() { b.words.end(Now(), 1<<bit) }); err != nil {
			return err
		}
	}
	return nil
}

// Close unmaps the file. Processes and guests keep their mappings.
func (b *BusyFile) Close() error { return errors.Join(b.region.Close(), b.locks.Close()) }

// BusyBit is a process's bit. Any goroutine may call its methods.
type BusyBit struct {
	region *Region
	locks  *os.File
	words  busyWords
	bit    uint64

	mu      sync.Mutex // guards the rest, and the bit's changes
	batches int        // that set the bit
	failed  error      // the word cannot be used any more
}

// ErrNoBit is wrapped by OpenBusyBit if BusyBits processes have one.
var ErrNoBit = errors.New("all bits are in use")

// OpenBusyBit takes a bit for this process. It takes ownership of the files, which are those of BusyFile.Files.
func OpenBusyBit(word, locks *os.File) (*BusyBit, error) {
	bit, err := takeBit(locks)
	if err != nil {
		return nil, errors.Join(err, word.Close(), locks.Close())
	}
	region, err := Map(word, busyBytes, true)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map busy file: %w", err), locks.Close())
	}
	b := &BusyBit{region: region, locks: locks, words: busyOf(region.Bytes()), bit: 1 << bit}
	// A process that was killed may have left the bit.
	if err := guard(func() { b.words.end(Now(), b.bit) }); err != nil {
		return nil, errors.Join(err, region.Close(), locks.Close())
	}
	return b, nil
}

func takeBit(locks *os.File) (bit int, err error) {
	for bit := range BusyBits {
		err := lockBit(locks, bit)
		if err == nil {
			return bit, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return 0, fmt.Errorf("lock bit of the busy word: %w", err)
		}
	}
	return 0, fmt.Errorf("take one of %d bits of the busy word: %w", BusyBits, ErrNoBit)
}

// Begin sets the bit for a batch that begins, unless guests have their pause, and reports whether it did.
// If so, the caller calls End when the batch has ended.
func (b *BusyBit) Begin(now int64) (set bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failed != nil {
		return false
	}
	if b.failed = guard(func() { set = b.words.begin(now, b.bit) }); set {
		b.batches++
	}
	return set
}

// End ends a batch for which Begin has set the bit.
func (b *BusyBit) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.batches--; b.batches == 0 && b.failed == nil {
		b.failed = guard(func() { b.words.end(Now(), b.bit) })
	}
}

// Close clears the bit and gives it back. No batch is in flight.
func (b *BusyBit) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = guard(func() { b.words.end(Now(), b.bit) }) // a guest that waits for the file waits for it in any case
	return errors.Join(b.region.Close(), b.locks.Close())
}
