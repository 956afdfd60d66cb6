//go:build !slim

package zoo

import (
	"embed"
	"io/fs"
)

//go:embed face/* fashion/* detect/* pictures/*.jpg fashion-mnist/*.gz
var embedded embed.FS

// files returns everything that ships, by path below this folder.
func files() fs.FS { return embedded }
