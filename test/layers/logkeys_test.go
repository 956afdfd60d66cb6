package layers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

// TestLogKeys refuses log messages with the same key twice: readers of JSON keep one of the values
// and lose the other. zerolog itself adds level, time and message.
func TestLogKeys(t *testing.T) {
	messages := 0
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && strings.HasPrefix(e.Name(), "."):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}

		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Msg" && f.Sel.Name != "Msgf" {
				return true
			}

			messages++
			keys := append(chainKeys(call), "level", "time", "message")
			slices.Sort(keys)
			for i, key := range keys[1:] {
				if key == keys[i] {
					t.Errorf("%s: log message has the key %q twice", files.Position(call.Pos()), key)
				}
			}
			return true
		})
		return nil
	})
	must.OK(t, err)
	if messages < 100 {
		t.Errorf("found %d log messages, want all of the tree", messages)
	}
}

// chainKeys returns the keys of log.Info().Str(key, …).Err(err).Msg(…): the first argument of each
// call that has two.
func chainKeys(call *ast.CallExpr) (keys []string) {
	for {
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return keys
		}
		if f.Sel.Name == "Err" {
			keys = append(keys, "error")
		} else if len(call.Args) == 2 {
			if key, ok := call.Args[0].(*ast.BasicLit); ok && key.Kind == token.STRING {
				if key, err := strconv.Unquote(key.Value); err == nil {
					keys = append(keys, key)
				}
			}
		}
		if call, ok = f.X.(*ast.CallExpr); !ok {
			return keys
		}
	}
}
