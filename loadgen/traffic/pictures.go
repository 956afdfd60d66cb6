package traffic

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"

	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/picture"
	"github.com/penstock/penstock/models/zoo"
)

// pictures returns images of Fashion-MNIST if they have the function's shape. If not, it returns
// photos if the function takes photos, else random bytes.
func (o *Options) pictures(f *function, in control.InputStatus, photos []picture.Photo) ([][]byte, error) {
	switch {
	case in.WireType != string(models.U8) || in.WireLayout != string(models.HWC) || in.Channels != 1 && in.Channels != 3:
		return noise(in.Bytes, o.Spec.Seed), nil
	case in.Height == 28 && in.Width == 28 && in.Channels == 1 && o.Pictures == "":
		images, _, err := zoo.FashionTest()
		return images, err
	}
	f.photos = picture.NewPhotos(photos, &models.Input{
		Height: in.Height, Width: in.Width, Channels: in.Channels, WireType: models.U8, WireLayout: models.HWC,
		Fit: in.Fit, Pad: in.Pad, Antialias: in.Antialias, Background: [3]uint8{255, 255, 255},
	})
	return f.photos.Pictures, nil
}

// noise returns a few pictures of random bytes.
func noise(bytes int, seed uint64) [][]byte {
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	pictures := make([][]byte, 8)
	for i := range pictures {
		pictures[i] = make([]byte, bytes)
		random.Read(pictures[i])
	}
	return pictures
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
