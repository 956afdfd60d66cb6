package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/models/profile"
)

func TestProfileFlags(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Chdir(t.TempDir())
	for args, want := range map[string]string{
		"":                         "penstock profile has 0 arguments; want `penstock profile MODEL`",
		"nothere":                  `unknown model "nothere"; known are detect, face, fashion; name a folder of cards with --models`,
		"./none.yaml":              "none.yaml: no such file",
		"fashion --models nowhere": "open nowhere: no such file",
		"fashion --shares 0":       "--shares 0: want at least 1",
		"fashion --shares 101":     "--shares 101: want 1 to 100 percent",
		"fashion --shares 10,10":   "--shares 10: is listed twice",
		"fashion --shares ten":     "see `penstock profile --help`",
		"fashion --shares 4":       "--shares 4: is less than 1 percent for each of 5 processes",
		"fashion --batches 1025":   "--batches 1025: want at most 1024",
		"fashion --batches 1000 --processes 30 --shares 100": "want at most 16384; take smaller batches or fewer processes",
		"fashion --processes 0":                              "--processes 0: want at least 1",
		"fashion --processes 65":                             "want numbers from 1 to 64",
		"fashion --window 1ms":                               "--window 1ms: want 10ms to 1m",
		"fashion --precision NaN":                            "--precision NaN: want 0.1 to 100",
		"fashion --windows 3":                                "--windows 3: want at least 4",
		"fashion --cut":                                      "--cut without --sizes",
		"fashion --sizes":                                    "--sizes: a CPU is not cut into MIG instances",
		"fashion --out /proc/nothing":                        "make folder for the profile: mkdir /proc/nothing",
	} {
		cmd := root()
		cmd.SetArgs(append([]string{"profile", "--device", "cpu"}, strings.Fields(args)...))
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %s", args, err, want)
		}
	}
}

// measured is a profile with knees at 60 and 70 %.
func measured() profile.Profile {
	p := profile.Profile{Header: profile.Header{Version: profile.Version, Model: "fashion", GPU: "a formula", Unit: profile.Percent, Total: 100, PersistentMiB: 1.5, EphemeralMiB: 0.5}}
	for share := 10; share <= 100; share += 10 {
		p.Points = append(p.Points,
			profile.Point{Share: share, Batch: 1, Processes: 1, Throughput: float64(min(share, 70)), Latency: time.Millisecond},
			profile.Point{Share: share, Batch: 8, Processes: 1, Throughput: 2 * float64(min(share, 80)), Latency: 4 * time.Millisecond})
	}
	p.Header.Knees = profile.Knees(p.Points)
	return p
}

func TestModelsProfiles(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	dir := t.TempDir()
	var text bytes.Buffer
	if err := profile.Write(&text, measured()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "fashion.csv"), text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	list := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := root()
		cmd.SetArgs(append([]string{"models", "--runtime-dir", t.TempDir()}, args...))
		cmd.SetOut(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	if out, err := list("--profiles", dir); err != nil || !strings.Contains(out, "70 %") || !strings.Contains(out, "1.5 + 0.5 MiB") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := list(); err != nil || strings.Contains(out, "70 %") {
		t.Errorf("without profiles: %v\n%s", err, out)
	}
	if _, err := list("--profiles", filepath.Join(dir, "nowhere")); err == nil || !strings.Contains(err.Error(), "nowhere: no such file") {
		t.Errorf("a folder that is not there: %v", err)
	}
}
