package sharing

import (
	"os"

	"github.com/rs/zerolog"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/shm"
)

// busy is the busy word, which shows guests on a GPU when functions use it.
type busy struct {
	dir    string // the runtime folder
	log    zerolog.Logger
	shared *shm.BusyFile // nil until the node runs on a GPU
	failed string        // the last error
}

// sweep makes the file of the word, and lets guests go on that wait for processes that have ended.
func (b *busy) sweep() {
	if b.shared == nil {
		b.note(b.make())
		return
	}
	b.note(b.shared.Sweep())
}

func (b *busy) make() error {
	f, err := control.MakeBusyFile(b.dir)
	if err != nil {
		return err
	}
	b.shared, err = shm.OpenBusyFile(f)
	return err
}

// files returns the files for a process that attaches: the word and its locks. The caller closes the
// second one.
func (b *busy) files() []*os.File {
	if b.shared == nil {
		b.sweep()
	}
	if b.shared == nil {
		return nil
	}
	word, locks, err := b.shared.Files()
	if b.note(err); err != nil {
		return nil
	}
	return []*os.File{word, locks}
}

// note logs an error once.
func (b *busy) note(err error) {
	if err != nil && err.Error() != b.failed {
		b.failed = err.Error()
		b.log.Warn().Err(err).Msg("guests do not wait for batches of functions; they have only their low priority")
	}
}

// close unmaps the file. Processes and guests keep their mappings.
func (b *busy) close() {
	if b.shared != nil {
		b.shared.Close()
	}
}
