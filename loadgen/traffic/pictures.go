package traffic

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/loadgen"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/models/zoo"
)

// pictures returns labelled pictures if there are some of the function's shape. If not,
// it returns photos if the function takes photos, else random bytes.
func (o *Options) pictures(f *function, in control.InputStatus, photos []picture.Photo) (loadgen.Pictures, error) {
	switch {
	case in.WireType != string(models.U8) || in.WireLayout != string(models.HWC) || in.Channels != 1 && in.Channels != 3:
		return noise(in.Bytes, o.Spec.Seed)
	case in.Height == 28 && in.Width == 28 && in.Channels == 1 && o.Pictures == "":
		return fashion()
	}
	f.photos = picture.NewPhotos(photos, &models.Input{
		Height: in.Height, Width: in.Width, Channels: in.Channels, WireType: models.U8, WireLayout: models.HWC,
		Fit: in.Fit, Pad: in.Pad, Antialias: in.Antialias, Background: [3]uint8{255, 255, 255},
	})
	return f.photos, nil
}

func fashion() (loadgen.Pictures, error) {
	images, classes, err := zoo.FashionTest()
	if err != nil {
		return nil, err
	}
	labels := make([]int, len(classes))
	for i, class := range classes {
		labels[i] = int(class)
	}
	return picture.NewLabelled(images, labels)
}

// noise returns a few pictures of random bytes.
func noise(bytes int, seed uint64) (loadgen.Pictures, error) {
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	const count = 8
	pictures, labels := make([][]byte, count), make([]int, count)
	for i := range pictures {
		pictures[i], labels[i] = make([]byte, bytes), picture.NoLabel
		random.Read(pictures[i])
	}
	return picture.NewLabelled(pictures, labels)
}

func readPhotos(dir string) ([]picture.Photo, error) {
	var fsys fs.FS = zoo.PictureFS()
	if dir != "" {
		if info, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("--pictures %s: %w", dir, errors.Unwrap(err))
		} else if !info.IsDir() {
			return nil, fmt.Errorf("--pictures %s: is a file, want a folder", dir)
		}
		fsys = os.DirFS(dir)
	}
	photos, err := picture.Read(fsys, "*.png", "*.jpg", "*.jpeg", "*.PNG", "*.JPG", "*.JPEG")
	if err != nil {
		if errors.Is(err, picture.ErrNone) {
			return nil, fmt.Errorf("--pictures %s: no PNG or JPEG file in this folder", dir)
		}
		return nil, fmt.Errorf("read pictures: %w", err)
	}
	return photos, nil
}
