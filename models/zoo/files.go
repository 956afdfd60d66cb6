package zoo

import "io/fs"

// PictureFS holds the pictures' files, NAME.jpg.
func PictureFS() fs.FS {
	sub, err := fs.Sub(pictures, "pictures")
	if err != nil {
		panic(err) // the folder is part of the binary
	}
	return sub
}
