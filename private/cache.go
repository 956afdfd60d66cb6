package private

import (
	"fmt"
	"os"
	"path/filepath"
)

// MakeCache returns this user's cache folder of Penstock, and makes it if need be: penstock in
// the user's cache folder, else penstock-UID in the temporary folder. The second one is for
// services, which often have no home, and for a process whose HOME is another user's.
func MakeCache() (string, error) {
	if user, err := os.UserCacheDir(); err == nil {
		if f, err := MakeFolder(filepath.Join(user, "penstock"), 0o755); err == nil {
			return f.Path(), f.Close()
		}
	}
	f, err := MakeFolder(filepath.Join(os.TempDir(), fmt.Sprintf("penstock-%d", os.Geteuid())), 0o755)
	if err != nil {
		return "", fmt.Errorf("make cache folder: %w; set XDG_CACHE_HOME to a folder that you own", err)
	}
	return f.Path(), f.Close()
}
