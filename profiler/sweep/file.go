package sweep

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/penstock/penstock/models/profile"
)

// PartialSuffix follows a profile's name while points of it are missing, so that
// nobody plans with it.
const PartialSuffix = ".partial"

// errOtherHeader is returned where a file was measured under other circumstances than
// the sweep's.
var errOtherHeader = errors.New("was measured under other circumstances")

// resume reads what there is of a profile: the partial file, which is the younger where
// both are there, else the finished one, else nothing. The error wraps errOtherHeader where its header is not the sweep's.
func resume(file string, want profile.Header) (profile.Profile, error) {
	for _, name := range []string{file + PartialSuffix, file} {
		have, err := readFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return have, err
		}
		if have.Header.Sweep != nil && have.Header.Sweep.Quick && !want.Sweep.Quick {
			continue // the whole measurement replaces the quick one
		}
		if differs := difference(have.Header, want); differs != "" {
			return have, fmt.Errorf("%s %w: %s; --again measures anew, --out puts it elsewhere", name, errOtherHeader, differs)
		}
		return have, nil
	}
	return profile.Profile{Header: want}, nil
}

func readFile(name string) (profile.Profile, error) {
	f, err := os.Open(name)
	if err != nil {
		return profile.Profile{}, fmt.Errorf("read profile: %w", err)
	}
	defer f.Close()
	return profile.Read(f, name)
}

// difference says what in two headers is not the same, of what must be for their points
// to stand in one file; empty where nothing is.
func difference(have, want profile.Header) string {
	var all []string
	add := func(what string, a, b any) {
		if !reflect.DeepEqual(a, b) {
			all = append(all, fmt.Sprintf("%s was %v, is %v", what, a, b))
		}
	}
	add("model", have.Model, want.Model)
	add("the card's version", have.ModelVersion, want.ModelVersion)
	add("the model's file", have.ModelDigest, want.ModelDigest)
	add("device", have.Device, want.Device)
	add("GPU", have.GPU, want.GPU)
	add("the shares' unit", have.Unit, want.Unit)
	add("the whole device", have.Total, want.Total)
	add("what holds the shares", have.HeldBy, want.HeldBy)
	names := map[string]bool{}
	for _, versions := range []map[string]string{have.Versions, want.Versions} {
		for name := range versions {
			names[name] = true
		}
	}
	for _, name := range sorted(names) {
		add("version of "+name, have.Versions[name], want.Versions[name])
	}
	a, b := have.Sweep, want.Sweep
	if a == nil {
		a = &profile.Sweep{}
	}
	add("shares", a.Shares, b.Shares)
	add("batches", a.Batches, b.Batches)
	add("processes", a.Processes, b.Processes)
	add("window", a.WindowSeconds, b.WindowSeconds)
	add("precision", a.PrecisionPercent, b.PrecisionPercent)
	add("least windows", a.LeastWindows, b.LeastWindows)
	add("most windows", a.MostWindows, b.MostWindows)
	add("quick", a.Quick, b.Quick)
	return strings.Join(all, "; ")
}

// save writes a profile under its name, or the partial one while it is not complete:
// a reader sees the whole of it or none. The partial file goes when it is complete.
func save(file string, p profile.Profile) error {
	name := file + PartialSuffix
	if p.Header.Complete {
		name = file
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".profile-*")
	if err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	defer os.Remove(tmp.Name()) // gone already where all went well
	err = profile.Write(tmp, p)
	const everybodyReads = 0o644
	if err = errors.Join(err, tmp.Chmod(everybodyReads), tmp.Close()); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	if p.Header.Complete {
		return forget(file + PartialSuffix)
	}
	return nil
}

func forget(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// ruleOf is the rule that a header states.
func ruleOf(s profile.Sweep) stopRule {
	r := stopRule{
		Window:    time.Duration(s.WindowSeconds * float64(time.Second)),
		Precision: s.PrecisionPercent / 100, LeastWindows: s.LeastWindows, MostWindows: s.MostWindows,
		LongestWindow: 10 * time.Second, Patience: 16,
	}
	if s.Quick {
		r.LongestWindow, r.Patience = time.Second, 4
	}
	return r
}
