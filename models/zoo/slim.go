//go:build slim

package zoo

import (
	"io/fs"
	"os"
)

// folderVariable names the environment variable with the folder of the shipped
// models' files, for a build with the tag slim.
const folderVariable = "PENSTOCK_ZOO"

// files returns everything that ships, by path below this folder.
func files() fs.FS { return os.DirFS(os.Getenv(folderVariable)) }
