package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/internal/testing/tinymodel"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/draft"
	"github.com/penstock/penstock/models/onnxfile"
)

// penstockRuns runs a command line, and returns what it prints.
func penstockRuns(t *testing.T, words ...string) (out, errs string, err error) {
	t.Helper()
	cmd := root()
	var stdout, stderr strings.Builder
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(words)
	_, err = execute(t.Context(), cmd)
	return stdout.String(), stderr.String(), err
}

func TestInspect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "My Net.onnx")
	fatal(t, os.WriteFile(file, tinymodel.Linear(tinymodel.F32, 4, tinymodel.Dynamic, 3, 16, 8).Encode(), 0o644))
	card := strings.TrimSuffix(file, ".onnx") + ".yaml"

	out, errs, err := penstockRuns(t, "models", "inspect", file)
	fatal(t, err)
	if !strings.Contains(out, "name: my-net\n") || !strings.Contains(out, "# in   x f32 [n, 3, 16, 8]") || !strings.Contains(errs, "--scale 1/255 --colour rgb --decoder classes") {
		t.Errorf("prints\n%s\n%s", out, errs)
	}
	if _, err := os.Stat(card); err == nil {
		t.Error("there is a card without --write")
	}

	out, errs, err = penstockRuns(t, "models", "inspect", file, "--write", "-o", "json", "--scale", "1/255", "--mean", "0.5", "--std", "0.5,0.25,0.5", "--colour", "bgr")
	fatal(t, err)
	var result struct {
		File *onnxfile.Model
		Card string
	}
	fatal(t, json.Unmarshal([]byte(out), &result))
	written, err := models.ReadCard(card)
	fatal(t, err)
	if in := &written.Input; result.File.Inputs[0].Name != "x" || !in.ReverseChannels || in.Mean[0] != 127.5 || in.Std[1] != 63.75 || written.Model != file || !strings.Contains(errs, "wrote "+card) {
		t.Errorf("the card is %+v, printed %s, %s", written, out, errs)
	}

	// A draft is replaced, an edited card is not.
	_, _, err = penstockRuns(t, "models", "inspect", file, "--write")
	fatal(t, err)
	text, err := os.ReadFile(card)
	fatal(t, err)
	_, rest, _ := strings.Cut(string(text), "\n")
	fatal(t, os.WriteFile(card, []byte(rest), 0o644))
	if _, _, err = penstockRuns(t, "models", "inspect", file, "--write"); err == nil || !strings.Contains(err.Error(), "was edited") {
		t.Errorf("an edited card: %v", err)
	}
}

func TestInspectErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "net.onnx")
	fatal(t, os.WriteFile(file, tinymodel.Linear(tinymodel.F32, 4, tinymodel.Dynamic, 3, 16, 8).Encode(), 0o644))
	pointer := filepath.Join(dir, "pointer.onnx")
	fatal(t, os.WriteFile(pointer, []byte("version https://git-lfs.github.com/spec/v1\n"), 0o644))
	outside := tinymodel.Linear(tinymodel.F32, 4, tinymodel.Dynamic, 3)
	outside.Weights[0].File = "../weights"
	beyond := filepath.Join(dir, "beyond.onnx")
	fatal(t, os.WriteFile(beyond, outside.Encode(), 0o644))
	for want, words := range map[string][]string{
		`invalid argument "0" for "--scale" flag: want a number above 0`:   {file, "--scale", "0"},
		`invalid argument "1/0" for "--scale" flag: want a number above 0`: {file, "--scale", "1/0"},
		`invalid argument "0" for "--std" flag: want one number`:           {file, "--std", "0"},
		`invalid argument "1,x" for "--mean" flag: want one number`:        {file, "--mean", "1,x"},
		`--colour is "red", want rgb or bgr`:                               {file, "--colour", "red"},
		`invalid argument "3x" for "--size" flag: want sizes like`:         {file, "--size", "3x"},
		"--size has 2 numbers, want 0":                                     {file, "--size", "32x32"},
		"--mean and --std: 2 numbers, want 1 or 3":                         {file, "--mean", "1,2"},
		`--output is "yaml", want card or json`:                            {file, "-o", "yaml"},
		"is a Git LFS pointer; run":                                        {pointer},
		"the name leads out of the model's folder":                         {beyond},
		"no such file": {filepath.Join(dir, "missing.onnx")},
		"are for a model without a card; edit the card": {"add", "--model", "fashion", "--scale", "1/255"},
		"add.onnx: no such file":                        {"add", "--model", filepath.Join(dir, "add.onnx")},
	} {
		switch {
		case words[0] == "add":
			words = append([]string{"if", "add", "x", "--runtime-dir", dir}, words[1:]...)
		default:
			words = append([]string{"models", "inspect"}, words...)
		}
		if _, _, err := penstockRuns(t, words...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", words, err, want)
		}
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The card of a model in a folder that this user cannot write is kept in the runtime folder.
func TestDraftedCard(t *testing.T) {
	dir, runtimeDir := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "net.onnx")
	fatal(t, os.WriteFile(file, tinymodel.Linear(tinymodel.F32, 4, tinymodel.Dynamic, 3, 16, 8).Encode(), 0o644))
	fatal(t, os.Chmod(dir, 0o555))
	if os.Geteuid() == 0 { // root may write to any folder that is not read-only
		runtime.LockOSThread() // and never unlocked: the thread ends with the test
		fatal(t, unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS))
		fatal(t, unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""))
		fatal(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
		fatal(t, unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}

	drafted := func(options draft.Options) (string, string, error) {
		cmd := addCommand(nil)
		var errs strings.Builder
		cmd.SetErr(&errs)
		cmd.SetContext(t.Context())
		path, err := draftedCard(cmd, file, "mine", runtimeDir, &options)
		return path, errs.String(), err
	}
	path, printed, err := drafted(draft.Options{})
	fatal(t, err)
	card, err := models.ReadCard(path)
	fatal(t, err)
	if want := filepath.Join(runtimeDir, "cards", "mine.yaml"); path != want || card.Model != file || !strings.Contains(printed, "drafted "+path+": takes x f32 [3, 16, 8] (raw), answers raw\n") {
		t.Errorf("drafted %s for %s, printed %s", path, card.Model, printed)
	}

	// A card beside the model is taken, unless it is another model's. Flags do not change it.
	beside := filepath.Join(dir, "net.yaml")
	text, err := os.ReadFile(path)
	fatal(t, err)
	if os.Geteuid() == 0 {
		fatal(t, unix.Unmount(dir, 0))
	}
	fatal(t, os.Chmod(dir, 0o755))
	_, rest, _ := strings.Cut(string(text), "\n")
	fatal(t, os.WriteFile(beside, []byte(rest), 0o644))
	if path, printed, err = drafted(draft.Options{}); err != nil || path != beside || printed != "card: "+beside+"\n" {
		t.Errorf("card beside: %s, %q, %v", path, printed, err)
	}
	if _, _, err = drafted(draft.Options{Scale: 1. / 255}); err == nil || !strings.Contains(err.Error(), "was edited: "+beside) {
		t.Errorf("flags with an edited card: %v", err)
	}
	other := filepath.Join(dir, "other.onnx")
	fatal(t, os.Rename(file, other))
	fatal(t, os.WriteFile(beside, []byte(strings.Replace(rest, file, other, 1)), 0o644))
	fatal(t, os.Link(other, file))
	if _, _, err = drafted(draft.Options{}); err == nil || !strings.Contains(err.Error(), beside+" is the card of "+other+", not of "+file) {
		t.Errorf("card of another model: %v", err)
	}
}
