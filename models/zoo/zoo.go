// Package zoo is what ships with Penstock: three models with their cards, five
// pictures, and 1,000 labelled images. They are inside the binary, so that they
// are available wherever it is moved to. NOTICE lists their sources.
//
// It is a separate package because it takes 9 MB: a program that only links libml
// does not carry it. Pages that are never read are never loaded. A build with the
// tag slim carries nothing and reads the same files from the folder that PENSTOCK_ZOO names.
package zoo

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/atomicfile"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/private"
)

// ErrUnknownModel is returned by Registry.Find for a name that no card has.
var ErrUnknownModel = errors.New("unknown model")

// Registry finds cards. The zero value knows the shipped ones and puts their
// files into the user's cache folder.
type Registry struct {
	// Dirs are folders of cards, searched in order before the shipped ones.
	Dirs []string
	// Cache is the folder for the files of shipped models: frameworks and other
	// processes open files by path. Empty means private.MakeCache.
	Cache string
	// Sums is a file of sha256sum that must list the files of all models but the shipped ones. Empty demands none.
	Sums string
}

// Find returns the card for ref. If ref has a '/' or ends in .yaml, it is a
// card's file, else a model's name. A card with that name in Dirs comes before
// the shipped one. Other cards in Dirs may be invalid. A card whose file or
// folder has the model's name must be valid, or the shipped model would replace
// it silently.
func (r Registry) Find(ref string) (*models.Card, error) {
	card, err := r.find(ref)
	if err != nil || r.Sums == "" || r.Shipped(card) {
		return card, err
	}
	if err := card.Demand(r.Sums); err != nil {
		return nil, fmt.Errorf("find card %s: %w", ref, err)
	}
	return card, nil
}

func (r Registry) find(ref string) (*models.Card, error) {
	if strings.ContainsRune(ref, '/') || filepath.Ext(ref) == ".yaml" {
		return models.ReadCard(ref)
	}
	known := Names()
	var broken []error
	for _, dir := range r.Dirs {
		if card, err := namedFor(dir, ref); card != nil || err != nil {
			return card, err
		}
		cards, err := models.ReadDir(dir)
		for _, c := range cards {
			if c.Name == ref {
				return c, nil
			}
			known = append(known, c.Name)
		}
		var folder *fs.PathError
		if errors.As(err, &folder) && folder.Path == dir {
			return nil, fmt.Errorf("find card %s: %w", ref, err)
		}
		broken = append(broken, err)
	}
	if !slices.Contains(Names(), ref) {
		slices.Sort(known)
		unknown := fmt.Errorf("find card: %w %q%s", ErrUnknownModel, ref, document.Correct(ref, slices.Compact(known)))
		return nil, errors.Join(append([]error{unknown}, broken...)...)
	}
	dir, err := r.unpack(ref)
	if err != nil {
		return nil, fmt.Errorf("unpack model %s: %w", ref, err)
	}
	return models.ReadCard(filepath.Join(dir, "card.yaml"))
}

// namedFor reads the card of a model whose file or folder in dir has its name;
// nil if there is none.
func namedFor(dir, name string) (*models.Card, error) {
	if !models.NamePattern.MatchString(name) {
		return nil, nil
	}
	for _, file := range []string{name + ".yaml", filepath.Join(name, "card.yaml")} {
		path := filepath.Join(dir, file)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if card, err := models.ReadCard(path); err != nil || card.Name == name {
			return card, err
		}
	}
	return nil, nil
}

// Shipped reports whether a card is a shipped one in the cache, where changes to
// it would be overwritten.
func (r Registry) Shipped(card *models.Card) bool {
	cache, err := r.unpacked()
	if err == nil {
		cache, err = filepath.Abs(cache)
	}
	if err != nil {
		return false
	}
	within, err := filepath.Rel(cache, card.Dir)
	return err == nil && within != ".." && !strings.HasPrefix(within, "../")
}

// unpacked returns the folder of the unpacked shipped models.
func (r Registry) unpacked() (string, error) {
	if r.Cache != "" {
		return filepath.Join(r.Cache, "zoo"), nil
	}
	cache, err := private.MakeCache()
	return filepath.Join(cache, "zoo"), err
}

// Names returns the names of the shipped models.
func Names() []string { return []string{"detect", "face", "fashion"} }

// unpack writes a shipped model's files into a folder of the cache and returns
// that folder. The folder's name depends on the contents, so that two versions of
// Penstock do not affect each other. Several processes may unpack at once.
func (r Registry) unpack(name string) (string, error) {
	shipped := files()
	entries, err := fs.ReadDir(shipped, name)
	if err != nil {
		return "", err
	}
	files := make(map[string][]byte, len(entries))
	sum := sha256.New()
	for _, e := range entries { // ReadDir sorts
		data, err := fs.ReadFile(shipped, path.Join(name, e.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n", e.Name(), len(data))
		sum.Write(data)
		files[e.Name()] = data
	}
	cache, err := r.unpacked()
	if err != nil {
		return "", err
	}
	// A card may name a command, so we do not use a folder that another user
	// could change.
	dir := filepath.Join(cache, name+"-"+hex.EncodeToString(sum.Sum(nil))[:12])
	folder, err := private.MakeFolder(dir, 0o755)
	if err != nil {
		return "", err
	}
	defer folder.Close()
	for file, data := range files {
		if err := place(folder, file, data); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// place makes a file hold data. A reader sees the complete file or none. It
// replaces a file that belongs to another user or was cut short by a full disk.
func place(folder *private.Folder, file string, data []byte) error {
	if old, err := folder.ReadFile(file, int64(len(data))); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return atomicfile.Replace(filepath.Join(folder.Path(), file), data, 0o644)
}

// PictureFS holds the files of the shipped pictures, NAME.jpg.
func PictureFS() fs.FS {
	sub, err := fs.Sub(files(), "pictures")
	if err != nil {
		panic(err) // the name is a constant
	}
	return sub
}

// FashionTest returns the first 1,000 images of Fashion-MNIST's test set. Each
// has 28 x 28 grey bytes, row by row, which is what the model fashion takes over
// the wire. labels[i] is the class of image i, from 0 to 9, in the order of the
// card's labels.
func FashionTest() (images [][]byte, labels []byte, err error) {
	pixels, dims, err := readIDX("fashion-mnist/images.idx3.gz", 3)
	if err != nil {
		return nil, nil, fmt.Errorf("read images: %w", err)
	}
	labels, counts, err := readIDX("fashion-mnist/labels.idx1.gz", 1)
	if err != nil {
		return nil, nil, fmt.Errorf("read labels: %w", err)
	}
	if dims[0] != counts[0] {
		return nil, nil, fmt.Errorf("read labels: %d labels for %d images", counts[0], dims[0])
	}
	return slices.Collect(slices.Chunk(pixels, dims[1]*dims[2])), labels, nil
}

// readIDX reads a compressed file of bytes in the IDX format of the MNIST sets.
// The format has two zero bytes, the element type (8 is u8), the number of
// dimensions, each dimension as a big-endian u32, then the elements.
func readIDX(name string, rank int) (data []byte, dims []int, err error) {
	compressed, err := fs.ReadFile(files(), name)
	if err != nil {
		return nil, nil, err
	}
	z, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, nil, err
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		return nil, nil, err
	}
	head := 4 + 4*rank
	if len(raw) < head || !bytes.Equal(raw[:4], []byte{0, 0, 8, byte(rank)}) {
		return nil, nil, fmt.Errorf("not an IDX file of bytes in %d dimensions", rank)
	}
	total := 1
	for i := range rank {
		n := int(binary.BigEndian.Uint32(raw[4+4*i:]))
		dims = append(dims, n)
		total *= n
	}
	if len(raw)-head != total {
		return nil, nil, fmt.Errorf("%d bytes for dimensions %v", len(raw)-head, dims)
	}
	return raw[head:], dims, nil
}
