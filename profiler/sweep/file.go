package sweep

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/atomicfile"
	"github.com/penstock/penstock/models/profile"
)

// PartialSuffix is appended to a profile's name while points are missing, so that no
// plan uses it.
const PartialSuffix = ".partial"

// errOtherHeader is the error for a file that was measured under other circumstances
// than the sweep's.
var errOtherHeader = errors.New("was measured under other conditions")

// resume reads the existing part of a profile. It prefers the partial file, which is
// the newer one if both exist, then the finished one. If there is neither, it returns
// an empty profile. The error wraps errOtherHeader if the header differs from the
// sweep's.
func resume(file string, want profile.Header) (profile.Profile, error) {
	for _, name := range []string{file + PartialSuffix, file} {
		have, err := profile.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return have, err
		}
		if have.Header.Sweep != nil && have.Header.Sweep.Quick && !want.Sweep.Quick {
			continue // the full measurement replaces the quick one
		}
		if differs := difference(have.Header, want); differs != "" {
			return have, fmt.Errorf("%s %w: %s; measure it again with --again, or choose another folder with --out", name, errOtherHeader, differs)
		}
		return have, nil
	}
	return profile.Profile{Header: want}, nil
}

// difference describes how two headers differ, in the fields that must be equal for
// their points to be in one file. It is empty if there is no difference.
func difference(have, want profile.Header) string {
	was, is := conditions(have), conditions(want)
	names := maps.Clone(was)
	maps.Copy(names, is)
	var all []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if was[name] != is[name] {
			all = append(all, fmt.Sprintf("%s was %v, is %v", name, cmp.Or(was[name], "nothing"), cmp.Or(is[name], "nothing")))
		}
	}
	return strings.Join(all, "; ")
}

// conditions returns a header without what the measurement adds to it, as text by the names in the file.
func conditions(h profile.Header) map[string]string {
	h.Date, h.Complete, h.PersistentMiB, h.EphemeralMiB = time.Time{}, false, 0, 0
	h.Unsteady, h.LoadBound, h.Wrong, h.Knees = nil, nil, nil, nil
	all := map[string]string{}
	for _, part := range []any{h.Sweep, h.Versions, h} {
		text, _ := json.Marshal(part) // strings and numbers
		var fields map[string]json.RawMessage
		_ = json.Unmarshal(text, &fields)
		for name, value := range fields {
			all[name] = string(value)
		}
	}
	delete(all, "sweep") // its fields are there
	delete(all, "versions")
	return all
}

// save writes a profile under its name, or as the partial file if it is not complete. A
// reader sees the whole file or none. When the profile is complete, save removes the
// partial file.
func save(file string, p profile.Profile) error {
	name := file + PartialSuffix
	if p.Header.Complete {
		name = file
	}
	var text bytes.Buffer
	const everybodyReads = 0o644
	if err := profile.Write(&text, p); err != nil {
		return err
	}
	if err := atomicfile.Replace(name, text.Bytes(), everybodyReads); err != nil {
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

// ruleOf returns the rule that a header describes.
func ruleOf(s profile.Sweep) stopRule {
	r := stopRule{
		Window:    time.Duration(s.WindowSeconds * float64(time.Second)),
		Precision: s.PrecisionPercent / 100, MinWindows: s.MinWindows, MaxWindows: s.MaxWindows,
		LongestWindow: 10 * time.Second, Patience: 16,
	}
	if s.Quick {
		r.LongestWindow, r.Patience = time.Second, 4
	}
	return r
}
