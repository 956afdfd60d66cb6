package prepared

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/private"
)

// Key names an entry: what it was made of and for. Another key is another entry.
type Key struct {
	// File is the model's path. The rest tells the file from others that take its place,
	// which may have its size and, unpacked or copied with its times, its time Modified: by
	// inode and Changed, which nobody can set. Times are in nanoseconds.
	File     string `json:"file"`
	Bytes    int64  `json:"bytes"`
	Modified int64  `json:"modified"`
	Changed  int64  `json:"changed"`
	Inode    uint64 `json:"inode"`
	// Runtime is ONNX Runtime's version, Device the GPU, Layout the layout that it was
	// optimised for.
	Runtime string `json:"runtime"`
	Device  string `json:"device"`
	Layout  string `json:"layout"`
}

// KeyOf looks at a model's file.
func KeyOf(file, runtime, device, layout string) (Key, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return Key{}, err
	}
	var about unix.Stat_t
	if err := unix.Stat(path, &about); err != nil {
		return Key{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Key{
		File: path, Bytes: about.Size, Modified: about.Mtim.Nano(), Changed: about.Ctim.Nano(), Inode: about.Ino,
		Runtime: runtime, Device: device, Layout: layout,
	}, nil
}

// name is the entry's folder.
func (k Key) name() string {
	text, _ := json.Marshal(k) // strings and numbers
	sum := sha256.Sum256(append(text, format))
	return hex.EncodeToString(sum[:16])
}

// format is of the entries; others are not read.
const format = 1

// Port is an input or output as the model declares it: a type by its name, and -1 for a
// dimension that is open.
type Port struct {
	Name string  `json:"name"`
	Type string  `json:"type"`
	Dims []int64 `json:"dims"`
}

// Answer is what the CPU answered to an input, which Sample is the SHA-256 of.
type Answer struct {
	Sample  string      `json:"sample"`
	Outputs [][]float32 `json:"outputs"`
}

// Index is what an entry says of itself.
type Index struct {
	Key     Key      `json:"key"`
	Tensors []Tensor `json:"tensors"`
	// GraphSHA256 is the graph's; Bytes and CRC32C (Castagnoli) are the weights'.
	GraphSHA256 string  `json:"graph_sha256"`
	Bytes       int64   `json:"bytes"`
	CRC32C      uint32  `json:"crc32c"`
	Inputs      []Port  `json:"inputs"`
	Outputs     []Port  `json:"outputs"`
	Answer      *Answer `json:"answer,omitempty"`
	// Refused is why the model's weights cannot be shared; then there is nothing else.
	Refused string `json:"refused,omitempty"`
}

// Entry is a prepared model.
type Entry struct {
	Index
	Graph []byte
	// Dir has the graph and, under weightsFile, the weights.
	Dir string
	// use holds a lock: an entry that is in use is not removed to make room.
	use *os.File
}

// Close says that the entry's files are not needed any more.
func (e *Entry) Close() error { return e.use.Close() }

// Weights is the path of the file of weights.
func (e *Entry) Weights() string { return filepath.Join(e.Dir, weightsFile) }

// Verify reads the weights and returns an error if they are not what they were.
func (e *Entry) Verify() error {
	f, err := os.Open(e.Weights())
	if err != nil {
		return damaged(err)
	}
	defer f.Close()
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(sum, f)
	if err != nil {
		return damaged(err)
	}
	if n != e.Bytes || sum.Sum32() != e.CRC32C {
		return fmt.Errorf("verify %s: %d bytes with CRC-32C %#x, want %d with %#x", e.Weights(), n, sum.Sum32(), e.Bytes, e.CRC32C)
	}
	return nil
}

// Store is a folder of entries. Several processes may use it at once.
type Store struct {
	Dir string
	// MostBytes bounds all entries together: the ones that were used longest ago go. 0 is
	// defaultMost.
	MostBytes int64
}

const (
	defaultMost = 16 << 30
	indexFile   = "index.json"
	graphFile   = "graph.onnx"
	// making begins the names of entries that are being made.
	making = "making-"
	// A process that made one and died leaves it behind for so long.
	abandonedAfter = time.Hour
	maxIndexBytes  = 64 << 20
	maxGraphBytes  = 1 << 30
)

// DefaultDir is this user's folder for entries: onnx in private.MakeCache.
func DefaultDir() (string, error) {
	cache, err := private.MakeCache()
	if err != nil {
		return "", err
	}
	defer cache.Close()
	folder, err := private.MakeFolder(filepath.Join(cache.Path(), "onnx"), 0o700)
	if err != nil {
		return "", err
	}
	return folder.Path(), folder.Close()
}

// Open reads an entry, but not its weights. fs.ErrNotExist where there is none,
// ErrNotShareable where there can be none; one that is damaged is removed. The entry's
// files stay until Close.
func (s Store) Open(k Key) (*Entry, error) {
	dir := filepath.Join(s.Dir, k.name())
	e, err := read(dir, k)
	if err == nil {
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // it was used; an entry of root's stays as it is
		return e, nil
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNotShareable) {
		err = errors.Join(fmt.Errorf("prepared model %s: %w", dir, err), s.discard(dir))
	}
	return nil, err
}

func read(dir string, k Key) (_ *Entry, err error) {
	e := &Entry{Dir: dir}
	if e.use, err = os.Open(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.use.Close()
		}
	}()
	if err := lock(e.use, unix.LOCK_SH); err != nil {
		return nil, err
	}
	text, err := readFile(filepath.Join(dir, indexFile), maxIndexBytes)
	if err != nil {
		return nil, damaged(err)
	}
	if err := json.Unmarshal(text, &e.Index); err != nil {
		return nil, fmt.Errorf("its index is damaged: %w", err)
	}
	if e.Key != k {
		return nil, fmt.Errorf("it is of %+v", e.Key)
	}
	if e.Refused != "" {
		return nil, fmt.Errorf("%w: %s", ErrNotShareable, e.Refused)
	}
	if e.Graph, err = readFile(filepath.Join(dir, graphFile), maxGraphBytes); err != nil {
		return nil, damaged(err)
	}
	if sum := sha256.Sum256(e.Graph); hex.EncodeToString(sum[:]) != e.GraphSHA256 {
		return nil, errors.New("its graph is damaged")
	}
	about, err := os.Stat(e.Weights())
	if err != nil {
		return nil, damaged(err)
	}
	if about.Size() != e.Bytes {
		return nil, fmt.Errorf("its weights have %d bytes and had %d", about.Size(), e.Bytes)
	}
	for _, t := range e.Tensors {
		if t.Offset < 0 || t.Bytes <= 0 || t.Offset > e.Bytes-t.Bytes || t.Offset%alignment != 0 || elementBytes[t.Type] == 0 {
			return nil, fmt.Errorf("its index is damaged: %s lies at %d, %d bytes of %d", t.Name, t.Offset, t.Bytes, e.Bytes)
		}
	}
	return e, nil
}

// damaged is an error of a file that should be there: it is not that there is no entry.
func damaged(err error) error { return fmt.Errorf("it is not whole: %v", err) }

func readFile(path string, most int64) ([]byte, error) {
	about, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !about.Mode().IsRegular() || about.Size() > most {
		return nil, fmt.Errorf("%s is no file of at most %d bytes", path, most)
	}
	return os.ReadFile(path)
}

// Make makes an entry of a model that ONNX Runtime has saved, unless another process has
// made it meanwhile, and opens it. ErrNotShareable as for Split.
func (s Store) Make(k Key, optimised []byte, inputs, outputs []Port, answer *Answer) (*Entry, error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("prepare model: %w", err)
	}
	dir, err := os.MkdirTemp(s.Dir, making)
	if err != nil {
		return nil, fmt.Errorf("prepare model: %w", err)
	}
	defer os.RemoveAll(dir) // what is left of it
	i := Index{Key: k, Inputs: inputs, Outputs: outputs, Answer: answer}
	if err := i.write(dir, optimised); err != nil {
		if errors.Is(err, ErrNotShareable) {
			err = errors.Join(err, s.Refuse(k, err))
		}
		return nil, fmt.Errorf("prepare model: %w", err)
	}
	s.trim(i.Bytes)
	for range 3 {
		if err = os.Rename(dir, filepath.Join(s.Dir, k.name())); !errors.Is(err, fs.ErrExist) {
			break
		}
		// Another process was faster, unless its entry has gone again.
		if e, opened := s.Open(k); opened == nil || errors.Is(opened, ErrNotShareable) {
			return e, opened
		}
	}
	if err != nil {
		return nil, fmt.Errorf("prepare model: %w", err)
	}
	return s.Open(k)
}

// Refuse notes that a model's weights cannot be shared, in the place of its entry: nobody
// is to try it again.
func (s Store) Refuse(k Key, why error) error {
	text, err := json.Marshal(Index{Key: k, Refused: why.Error()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.Dir, making)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, indexFile), text, fileMode), share(dir)); err != nil {
		return err
	}
	if err := s.Remove(k); err != nil {
		return err
	}
	return os.Rename(dir, filepath.Join(s.Dir, k.name()))
}

func (i *Index) write(dir string, optimised []byte) error {
	f, err := os.OpenFile(filepath.Join(dir, weightsFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	defer f.Close()
	to := bufio.NewWriterSize(f, 1<<20)
	table := crc32.MakeTable(crc32.Castagnoli)
	graph, tensors, err := splitModel(optimised, func(b []byte) error {
		i.CRC32C = crc32.Update(i.CRC32C, table, b)
		i.Bytes += int64(len(b))
		_, err := to.Write(b)
		return err
	})
	if err != nil {
		return err
	}
	if err := to.Flush(); err != nil {
		return err
	}
	// A machine that stops here shall not leave an entry that looks whole: an index names
	// the size and the sum of what is on the disk.
	if err := f.Sync(); err != nil {
		return err
	}
	sum := sha256.Sum256(graph)
	i.Tensors, i.GraphSHA256 = tensors, hex.EncodeToString(sum[:])
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, graphFile), graph, fileMode), os.WriteFile(filepath.Join(dir, indexFile), text, fileMode), share(dir))
}

// fileMode is of an entry's files: a node gives the folder to the group of its functions, which
// read the entries and must not change them. Without such a group the folder is its owner's.
const fileMode = 0o640

// share lets the folder's group read an entry, whatever the mask says. Its files have the group
// from the folder that the store is in (set-group-ID).
func share(dir string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range list {
		if err := os.Chmod(filepath.Join(dir, f.Name()), fileMode); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o750)
}

// Remove takes an entry out, that turned out to be damaged. Who has its files open keeps
// them.
func (s Store) Remove(k Key) error { return s.discard(filepath.Join(s.Dir, k.name())) }

// discard takes an entry's folder out, if it is there, all at once: nobody sees, and a
// process that dies meanwhile does not leave, the half of one.
func (s Store) discard(dir string) error {
	aside, err := os.MkdirTemp(s.Dir, making)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err = os.Rename(dir, filepath.Join(aside, filepath.Base(dir))); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, os.RemoveAll(aside))
}

// trim makes room for so many bytes: entries that were used longest ago go, and what was
// left behind half made.
func (s Store) trim(room int64) {
	one, err := os.OpenFile(filepath.Join(s.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return
	}
	defer one.Close() // and with it the lock
	if unix.Flock(int(one.Fd()), unix.LOCK_EX) != nil {
		return
	}
	list, err := os.ReadDir(s.Dir)
	if err != nil {
		return
	}
	type old struct {
		dir   string
		used  time.Time
		bytes int64
	}
	var entries []old
	sum := room
	for _, d := range list {
		about, err := d.Info()
		if err != nil || !d.IsDir() {
			continue
		}
		dir := filepath.Join(s.Dir, d.Name())
		if strings.HasPrefix(d.Name(), making) {
			if time.Since(about.ModTime()) > abandonedAfter {
				os.RemoveAll(dir)
			}
			continue
		}
		e := old{dir: dir, used: about.ModTime()}
		for _, name := range []string{weightsFile, graphFile, indexFile} {
			if about, err := os.Stat(filepath.Join(dir, name)); err == nil {
				e.bytes += about.Size()
			}
		}
		sum += e.bytes
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b old) int { return a.used.Compare(b.used) })
	for _, e := range entries {
		if sum <= cmp.Or(s.MostBytes, defaultMost) {
			return
		}
		if s.discardUnused(e.dir) {
			sum -= e.bytes
		}
	}
}

// discardUnused takes an entry out that nobody has open, and reports whether it did. Who
// opens it meanwhile waits, and finds none.
func (s Store) discardUnused(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	return lock(f, unix.LOCK_EX|unix.LOCK_NB) == nil && s.discard(dir) == nil
}

// lock locks an entry's open folder until it is closed. fs.ErrNotExist where the folder is
// not there any more: another may have its name.
func lock(f *os.File, how int) error {
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return fmt.Errorf("lock it: %w", err)
	}
	its, err := f.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Stat(f.Name()); err != nil {
		return err
	} else if !os.SameFile(its, there) {
		return fs.ErrNotExist
	}
	return nil
}
