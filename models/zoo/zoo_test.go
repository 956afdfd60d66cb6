package zoo

import (
	"bytes"
	"errors"
	"image/jpeg"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/private"
)

func TestShippedModels(t *testing.T) {
	r := Registry{Cache: t.TempDir()}
	entries, err := os.ReadDir(".")
	must.OK(t, err)
	var folders []string
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(e.Name(), "card.yaml")); err == nil {
			folders = append(folders, e.Name())
		}
	}
	if !slices.Equal(folders, Names()) {
		t.Errorf("Names are %v, the folders with a card %v", Names(), folders)
	}
	for _, name := range Names() {
		card, err := r.Find(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if !r.Shipped(card) {
			t.Errorf("%s is not taken for a shipped one", card.File)
		}
		if card.Name != name || !strings.HasPrefix(card.Model, r.Cache) {
			t.Errorf("%s: card %s, model %s", name, card.Name, card.Model)
		}
	}
}

func TestShippedSize(t *testing.T) {
	const most = 9 << 20
	total := 0
	err := filepath.Walk(".", func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			total += int(info.Size())
		}
		return err
	})
	if err != nil || total > most {
		t.Errorf("%d bytes, want at most %d (%v)", total, most, err)
	}
}

// ownCard needs no file.
const ownCard = `name: NAME
version: 7
framework: "null"
input:
  size: [2, 2, 1]
  wire: {type: u8, layout: hwc}
  tensor: {type: u8, layout: hwc}
outputs: [{name: y, shape: [2]}]
slo: 10ms
`

func put(t *testing.T, dir, file, text string) string {
	t.Helper()
	path := filepath.Join(dir, file)
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.OK(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestCardOnDiskFirst(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	put(t, first, "other.yaml", strings.Replace(ownCard, "NAME", "other", 1))
	put(t, second, "anything/card.yaml", strings.Replace(ownCard, "NAME", "face", 1))
	r := Registry{Dirs: []string{first, second}, Cache: t.TempDir()}
	for _, name := range []string{"face", "other"} {
		if card, err := r.Find(name); err != nil || card.Version != 7 {
			t.Errorf("%s: %+v, %v", name, card, err)
		}
	}
	if card, err := r.Find("fashion"); err != nil || card.Version == 7 {
		t.Errorf("fashion: %+v, %v", card, err)
	}
}

// TestBrokenCard checks that a broken card on disk is an error, even if Penstock ships the model.
func TestBrokenCard(t *testing.T) {
	dir := t.TempDir()
	path := put(t, dir, "face/card.yaml", "name: face\n")
	r := Registry{Dirs: []string{dir}, Cache: t.TempDir()}
	if card, err := r.Find("face"); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %+v, %v", card, err)
	}
	if _, err := r.Find("fashion"); err != nil {
		t.Errorf("another model suffers: %v", err)
	}
}

func TestFindUnknown(t *testing.T) {
	dir := t.TempDir()
	put(t, dir, "mine.yaml", strings.Replace(ownCard, "NAME", "mine", 1))
	broken := put(t, dir, "broken.yaml", "name: [")
	r := Registry{Dirs: []string{dir}, Cache: t.TempDir()}
	for ref, want := range map[string]string{
		"fasion": `did you mean "fashion"?`,
		"zebra":  "known are detect, face, fashion, mine",
		"hidden": broken, // it may be the requested one
	} {
		if _, err := r.Find(ref); !errors.Is(err, ErrUnknownModel) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", ref, err, want)
		}
	}
	if _, err := (Registry{Dirs: []string{dir + "/gone"}}).Find("face"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestFindPath(t *testing.T) {
	path := put(t, t.TempDir(), "card.yaml", strings.Replace(ownCard, "NAME", "own", 1))
	if card, err := (Registry{}).Find(path); err != nil || card.Name != "own" {
		t.Errorf("got %+v, %v", card, err)
	}
	if _, err := (Registry{}).Find("./gone.yaml"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestCacheRepaired(t *testing.T) {
	r := Registry{Cache: t.TempDir()}
	card, err := r.Find("fashion")
	must.OK(t, err)
	good, err := os.ReadFile(card.Model)
	must.OK(t, err)
	must.OK(t, os.WriteFile(card.Model, good[:100], 0o644))
	if card, err = r.Find("fashion"); err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(card.Model)
	if err != nil || !bytes.Equal(again, good) {
		t.Errorf("%d bytes, want %d (%v)", len(again), len(good), err)
	}
}

// TestFolderIsPrivate: a card may name a command, so the folder decides what a node executes.
func TestFolderIsPrivate(t *testing.T) {
	r := Registry{Cache: t.TempDir()}
	card, err := r.Find("fashion")
	must.OK(t, err)

	for _, folder := range []string{card.Dir, filepath.Dir(card.Dir), r.Cache} {
		must.OK(t, os.Chmod(folder, 0o777))
		if _, err := r.Find("fashion"); !errors.Is(err, private.ErrNotPrivate) || !strings.Contains(err.Error(), folder+" is owned by") {
			t.Errorf("%s can be changed by all: %v, want %v", folder, err, private.ErrNotPrivate)
		}
		must.OK(t, os.Chmod(folder, 0o755))
	}

	// A file that all users can write is replaced, regardless of its contents.
	must.OK(t, os.Chmod(card.Model, 0o666))
	must.Get(r.Find("fashion"))(t)
	if info, err := os.Stat(card.Model); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the model's file: %v, %v; want mode 0644", info, err)
	}
}

func TestUnpackConcurrently(t *testing.T) {
	r := Registry{Cache: t.TempDir()}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := r.Find("face"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	left, err := filepath.Glob(filepath.Join(r.Cache, "zoo", "*", ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind %v (%v)", left, err)
	}
}

func TestCacheReadOnly(t *testing.T) {
	file := put(t, t.TempDir(), "file", "")
	if _, err := (Registry{Cache: file}).Find("face"); err == nil || !strings.Contains(err.Error(), "unpack model face") {
		t.Errorf("got %v", err)
	}
}

func TestPictures(t *testing.T) {
	names, err := fs.Glob(PictureFS(), "*")
	must.OK(t, err)
	for _, name := range names {
		file, err := PictureFS().Open(name)
		must.OK(t, err)
		img, err := jpeg.DecodeConfig(file)
		if err != nil || img.Width > 640 || img.Height > 640 {
			t.Errorf("%s: %d x %d, %v", name, img.Width, img.Height, err)
		}
	}
	if !slices.Equal(names, []string{"astronaut.jpg", "chelsea.jpg", "coffee.jpg", "grace_hopper.jpg", "rocket.jpg"}) {
		t.Errorf("pictures %v", names)
	}
}

func TestFashionTest(t *testing.T) {
	images, labels, err := FashionTest()
	must.OK(t, err)
	card, err := Registry{Cache: t.TempDir()}.Find("fashion")
	must.OK(t, err)
	if len(images) != 1000 || len(labels) != 1000 {
		t.Fatalf("%d images, %d labels", len(images), len(labels))
	}
	count := make([]int, len(card.Labels))
	for i, image := range images {
		if len(image) != card.Input.WireBytes() {
			t.Fatalf("image %d has %d bytes, the card wants %d", i, len(image), card.Input.WireBytes())
		}
		count[labels[i]]++
	}
	for class, n := range count {
		if n < 80 || n > 120 { // of 1,000 in ten classes
			t.Errorf("class %s has %d images", card.Labels[class], n)
		}
	}
	// The first image of the test set is an ankle boot.
	if labels[0] != 9 {
		t.Errorf("the first image is a %s", card.Labels[labels[0]])
	}
}

func TestNotice(t *testing.T) {
	notice, err := os.ReadFile("../../NOTICE")
	must.OK(t, err)
	pictures, err := fs.Glob(PictureFS(), "*")
	must.OK(t, err)
	for _, name := range pictures {
		if !bytes.Contains(notice, []byte("models/zoo/pictures/"+name+"\n")) {
			t.Errorf("NOTICE does not name %s", name)
		}
	}
	for _, name := range Names() {
		if !bytes.Contains(notice, []byte("models/zoo/"+name+"/model.onnx\n")) {
			t.Errorf("NOTICE does not name %s", name)
		}
	}
}

func TestReadShippedCards(t *testing.T) {
	cards, err := models.ReadDir(".")
	if err != nil || len(cards) != len(Names()) {
		t.Errorf("%d cards, %v", len(cards), err)
	}
}
