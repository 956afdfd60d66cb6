package prepared

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/libml/answer"
	"github.com/penstock/penstock/libml/weights"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/private"
)

// Key names an entry: the model that it was made from, and the machine that it was made
// for. Another key is another entry.
type Key struct {
	// File is the model's path. Contents is the SHA-256 of the identities (weights.Identity) of all
	// its files. A copied or unpacked file may have the same size and time as the one before, but
	// no program can set the time of its change, or its inode.
	File     string `json:"file"`
	Contents string `json:"contents"`
	// Runtime is ONNX Runtime's version, Device the GPU, and Layout the layout of the
	// optimised model.
	Runtime string `json:"runtime"`
	Device  string `json:"device"`
	Layout  string `json:"layout"`
}

// KeyOf returns the key of the model in files. The first one has the graph, and the others weights.
func KeyOf(files []string, runtime, device, layout string) (Key, error) {
	path, err := filepath.Abs(files[0])
	if err != nil {
		return Key{}, err
	}
	var contents []byte
	for _, name := range files {
		id, err := identify(name)
		if err != nil {
			return Key{}, err
		}
		id.Device = 0 // it may change when the machine starts
		contents = fmt.Append(contents, id)
	}
	return Key{File: path, Contents: answer.Digest(contents), Runtime: runtime, Device: device, Layout: layout}, nil
}

func identify(name string) (id weights.Identity, err error) {
	f, err := os.Open(name)
	if err != nil {
		return id, err
	}
	defer f.Close()
	return weights.Identify(f)
}

// name returns the name of the entry's folder.
func (k Key) name() string {
	text, _ := json.Marshal(k) // cannot fail: strings and numbers
	return answer.Digest(append(text, format))[:32]
}

// format is the version of the entries. Entries of other versions are not read.
const format = 3

// Answer is the CPU's answer to an input. Sample is the SHA-256 of the input. The output values are
// in a separate file, because a model may have half a million of them.
type Answer struct {
	Sample  string      `json:"sample"`
	Outputs [][]float32 `json:"-"`
	// Values is the number of values of each output, and SHA256 the checksum of their file. Make
	// sets both.
	Values []int  `json:"values"`
	SHA256 string `json:"sha256"`
}

// Index describes an entry.
type Index struct {
	Key     Key      `json:"key"`
	Tensors []Tensor `json:"tensors"`
	// GraphSHA256 is the checksum of the graph. Bytes and CRC32C (Castagnoli) are those of
	// the file of weights.
	GraphSHA256 string `json:"graph_sha256"`
	Bytes       int64  `json:"bytes"`
	CRC32C      uint32 `json:"crc32c"`
	Answer      Answer `json:"answer"`
	// Refused is the reason if the weights cannot be shared. The entry then has only its Key.
	Refused string `json:"refused,omitempty"`
}

// Entry is a prepared model.
type Entry struct {
	Index
	Graph []byte
	// Dir is the folder of the graph and of the weights (weightsFile).
	Dir string
	// use holds a lock, so that trim does not remove an entry in use.
	use *os.File
}

// Close ends the use of the entry's files.
func (e *Entry) Close() error { return e.use.Close() }

// Weights returns the path of the file of weights.
func (e *Entry) Weights() string { return filepath.Join(e.Dir, weightsFile) }

// Verify reads the weights and returns an error if their length or checksum has changed.
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
	// MostBytes bounds the size of all entries together. trim removes the least recently
	// used ones. 0 stands for defaultMost.
	MostBytes int64
}

const (
	defaultMost = 16 << 30
	indexFile   = "index.json"
	graphFile   = "graph.onnx"
	answerFile  = "answer.f32" // the values of all outputs, little-endian
	// unfinishedPrefix begins the names of unfinished entries.
	unfinishedPrefix = "making-"
	// abandonedAfter is the age at which an unfinished entry is removed: its process died.
	abandonedAfter = time.Hour
	maxIndexBytes  = 64 << 20
	maxGraphBytes  = 1 << 30
	maxAnswerBytes = 1 << 30
)

// DefaultDir returns this user's folder for entries: onnx in private.MakeCache.
func DefaultDir() (string, error) {
	cache, err := private.MakeCache()
	if err != nil {
		return "", err
	}
	folder, err := private.MakeFolder(filepath.Join(cache, "onnx"), 0o700)
	if err != nil {
		return "", err
	}
	return folder.Path(), folder.Close()
}

// Open reads an entry, but not its weights. It returns fs.ErrNotExist if the store has no
// such entry, and ErrNotShareable if the weights cannot be shared. It removes a damaged
// entry. The entry's files stay until Close.
func (s Store) Open(k Key) (*Entry, error) {
	dir := filepath.Join(s.Dir, k.name())
	e, err := read(dir, k)
	if err == nil {
		now := time.Now()
		_ = os.Chtimes(dir, now, now) // for trim; fails for an entry of root
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
	if err := lockFolder(e.use, unix.LOCK_SH); err != nil {
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
	if e.Graph, err = readChecked(filepath.Join(dir, graphFile), maxGraphBytes, e.GraphSHA256); err != nil {
		return nil, damaged(err)
	}
	if err := e.Answer.read(dir); err != nil {
		return nil, damaged(err)
	}
	about, err := os.Stat(e.Weights())
	if err != nil {
		return nil, damaged(err)
	}
	if about.Size() != e.Bytes {
		return nil, fmt.Errorf("its weights have %d bytes, want %d", about.Size(), e.Bytes)
	}
	if err := e.checkTensors(); err != nil {
		return nil, err
	}
	return e, nil
}

// checkTensors returns an error if a tensor does not lie within the file of weights.
func (i *Index) checkTensors() error {
	for _, t := range i.Tensors {
		if t.Offset < 0 || t.Bytes <= 0 || t.Offset > i.Bytes-t.Bytes || t.Offset%alignment != 0 || elementBytes[t.Type] == 0 {
			return fmt.Errorf("its index is damaged: %s lies at %d, %d bytes of %d", t.Name, t.Offset, t.Bytes, i.Bytes)
		}
	}
	return nil
}

// read reads the values of the outputs from an entry's folder.
func (a *Answer) read(dir string) error {
	content, err := readChecked(filepath.Join(dir, answerFile), maxAnswerBytes, a.SHA256)
	if err != nil {
		return err
	}
	for _, n := range a.Values {
		if n < 0 || n > len(content)/4 {
			return fmt.Errorf("the index has %d values of the answer, and %s does not", a.Values, answerFile)
		}
		a.Outputs, content = append(a.Outputs, answer.Floats(models.F32, content[:4*n])), content[4*n:]
	}
	return nil
}

// write writes the values of the outputs to an entry's folder.
func (a *Answer) write(dir string) error {
	var content []byte
	a.Values = nil
	for _, values := range a.Outputs {
		a.Values = append(a.Values, len(values))
		for _, v := range values {
			content = binary.LittleEndian.AppendUint32(content, math.Float32bits(v))
		}
	}
	a.SHA256 = answer.Digest(content)
	return os.WriteFile(filepath.Join(dir, answerFile), content, fileMode)
}

// damaged describes the error of a file that an entry has to have. It does not wrap err:
// fs.ErrNotExist means that the store has no such entry.
func damaged(err error) error { return fmt.Errorf("it is damaged: %v", err) }

// readChecked reads a file with this checksum.
func readChecked(path string, most int64, sum string) ([]byte, error) {
	content, err := readFile(path, most)
	if err != nil {
		return nil, err
	}
	if answer.Digest(content) != sum {
		return nil, fmt.Errorf("%s has another checksum", path)
	}
	return content, nil
}

func readFile(path string, most int64) ([]byte, error) {
	about, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !about.Mode().IsRegular() || about.Size() > most {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", path, most)
	}
	return os.ReadFile(path)
}

// Make makes an entry of an optimised model that ONNX Runtime saved, and opens it. If
// another process has made the entry meanwhile, Make opens that one. It returns
// ErrNotShareable as splitModel does.
func (s Store) Make(k Key, optimised []byte, a Answer) (*Entry, error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("prepare model: %w", err)
	}
	dir, err := os.MkdirTemp(s.Dir, unfinishedPrefix)
	if err != nil {
		return nil, fmt.Errorf("prepare model: %w", err)
	}
	defer os.RemoveAll(dir) // if it was not renamed

	i := Index{Key: k, Answer: a}
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
		// Another process was faster. Its entry may have been removed again.
		if e, opened := s.Open(k); opened == nil || errors.Is(opened, ErrNotShareable) {
			return e, opened
		}
	}
	if err != nil {
		return nil, fmt.Errorf("prepare model: %w", err)
	}
	return s.Open(k)
}

// Refuse records in place of an entry that the model's weights cannot be shared, so that no
// process tries it again.
func (s Store) Refuse(k Key, why error) error {
	text, err := json.Marshal(Index{Key: k, Refused: why.Error()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.Dir, unfinishedPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, indexFile), text, fileMode), allowGroup(dir)); err != nil {
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
	// Write the index only after the weights are on the disk: if the machine stops in
	// between, the entry must not look complete.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := i.Answer.write(dir); err != nil {
		return err
	}
	i.Tensors, i.GraphSHA256 = tensors, answer.Digest(graph)
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, graphFile), graph, fileMode), os.WriteFile(filepath.Join(dir, indexFile), text, fileMode), allowGroup(dir))
}

// fileMode is the mode of an entry's files. A node gives the folder to the group of its
// functions, which may read entries but not change them.
const fileMode = 0o640

// allowGroup lets the folder's group read an entry, whatever the umask is. The files have the
// group of the store's folder (set-group-ID).
func allowGroup(dir string) error {
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

// Remove removes a damaged entry. Processes that have its files open keep them.
func (s Store) Remove(k Key) error { return s.discard(filepath.Join(s.Dir, k.name())) }

// discard removes an entry's folder if it exists. It renames the folder first, so that no
// process sees an incomplete entry, even if this process dies meanwhile.
func (s Store) discard(dir string) error {
	aside, err := os.MkdirTemp(s.Dir, unfinishedPrefix)
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

// trim makes room for newBytes: it removes the least recently used entries that are not in
// use, and abandoned unfinished ones. One process trims at a time.
func (s Store) trim(newBytes int64) {
	one, err := os.OpenFile(filepath.Join(s.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return
	}
	defer one.Close() // releases the lock
	if unix.Flock(int(one.Fd()), unix.LOCK_EX) != nil {
		return
	}

	list, err := os.ReadDir(s.Dir)
	if err != nil {
		return
	}
	var entries []storedEntry
	for _, d := range list {
		about, err := d.Info()
		switch {
		case err != nil || !d.IsDir():
		case strings.HasPrefix(d.Name(), unfinishedPrefix):
			s.removeAbandoned(about)
		default:
			entries = append(entries, s.measure(about))
		}
	}
	s.removeOldest(entries, newBytes)
}

// storedEntry is an entry as trim sees it.
type storedEntry struct {
	dir   string
	used  time.Time
	bytes int64
}

func (s Store) measure(folder fs.FileInfo) storedEntry {
	e := storedEntry{dir: filepath.Join(s.Dir, folder.Name()), used: folder.ModTime()}
	for _, name := range []string{weightsFile, graphFile, answerFile, indexFile} {
		if about, err := os.Stat(filepath.Join(e.dir, name)); err == nil {
			e.bytes += about.Size()
		}
	}
	return e
}

func (s Store) removeAbandoned(folder fs.FileInfo) {
	if time.Since(folder.ModTime()) > abandonedAfter {
		os.RemoveAll(filepath.Join(s.Dir, folder.Name()))
	}
}

// removeOldest removes entries until the others and newBytes are within the bound.
func (s Store) removeOldest(entries []storedEntry, newBytes int64) {
	sum := newBytes
	for _, e := range entries {
		sum += e.bytes
	}

	slices.SortFunc(entries, func(a, b storedEntry) int { return a.used.Compare(b.used) })
	for _, e := range entries {
		if sum <= cmp.Or(s.MostBytes, defaultMost) {
			return
		}
		if s.discardUnused(e.dir) {
			sum -= e.bytes
		}
	}
}

// discardUnused removes an entry that no process has open, and reports whether it did. A
// process that opens it meanwhile waits, and finds no entry.
func (s Store) discardUnused(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	return lockFolder(f, unix.LOCK_EX|unix.LOCK_NB) == nil && s.discard(dir) == nil
}

// lockFolder locks an entry's open folder until it is closed. It returns fs.ErrNotExist if the
// folder was removed: another may have its name.
func lockFolder(f *os.File, how int) error {
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		return fmt.Errorf("lock it: %w", err)
	}
	locked, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(f.Name())
	if err != nil {
		return err
	}
	if !os.SameFile(locked, named) {
		return fs.ErrNotExist
	}
	return nil
}
