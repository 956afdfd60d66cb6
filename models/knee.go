package models

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// errCannotEdit is the error of WriteKnees if it finds no place for the knees in a
// card, or if the file changes meanwhile.
var errCannotEdit = errors.New("card cannot be edited")

// KneeLines returns the two lines of a card with its knees.
func KneeLines(percent float64, knees []Knee) string {
	return fmt.Sprintf("knee_percent: %s\nknees: %s\n", decimal(percent), kneeList(knees))
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

func kneeList(knees []Knee) string {
	var entries []string
	for _, k := range knees {
		entries = append(entries, fmt.Sprintf("{batch: %d, percent: %s}", k.Batch, decimal(k.Percent)))
	}
	return "[" + strings.Join(entries, ", ") + "]"
}

// WriteKnees writes knee_percent and knees into a card's file and keeps every other
// byte. It reads the new card, which must differ from the old one only in these two
// keys. It then replaces the old file atomically. If that fails, the error wraps
// errCannotEdit and the file is unchanged.
func WriteKnees(file string, percent float64, knees []Knee) error {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return fmt.Errorf("write knees: %w", err)
	}
	current, err := ReadCard(file)
	if err != nil {
		return fmt.Errorf("write knees: %w", err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("write knees: %w", err)
	}
	text, err := withKnees(string(data), percent, knees)
	if err != nil {
		return fmt.Errorf("write knees into %s: %w", file, err)
	}
	updated, err := decodeCard(current.File, []byte(text))
	if err != nil {
		return fmt.Errorf("write knees into %s: %w: %w", file, errCannotEdit, err)
	}
	current.KneePercent, current.Knees = percent, knees
	if !updated.Equal(current) {
		return fmt.Errorf("write knees into %s: %w: another key would change", file, errCannotEdit)
	}
	if err := replaceFile(file, []byte(text)); err != nil {
		return fmt.Errorf("write knees: %w", err)
	}
	return nil
}

// replaceFile replaces an existing file by data and keeps its mode. A reader sees
// either the old or the new file.
func replaceFile(file string, data []byte) (err error) {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".card-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // already gone on success
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(info.Mode().Perm()), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// withKnees returns a card's text with other knees. It finds keys by their lines. The
// caller reads the result to check that the lines were really these keys.
func withKnees(text string, percent float64, knees []Knee) (string, error) {
	keys := []struct{ name, value, flow string }{
		{"knee_percent", decimal(percent), `[-+0-9.eE]+`},
		{"knees", kneeList(knees), `\[[^\]]*\]`},
	}
	lines := strings.SplitAfter(text, "\n")
	at := lineOf(lines, "slo") // every card has it
	if at < 0 && !strings.Contains(text, "{") {
		return "", fmt.Errorf("%w: no line begins with slo", errCannotEdit)
	}
	if at < 0 { // one map in braces, as in JSON
		for _, k := range slices.Backward(keys) {
			pattern := regexp.MustCompile(`(["']?\b` + k.name + `\b["']?\s*:\s*)` + k.flow)
			if pattern.MatchString(text) {
				text = pattern.ReplaceAllString(text, "${1}"+quoted(k.value))
				continue
			}
			text = strings.Replace(text, "{", fmt.Sprintf("{%q: %s, ", k.name, quoted(k.value)), 1)
		}
		return text, nil
	}
	for _, k := range keys {
		if have := lineOf(lines, k.name); have >= 0 {
			lines, at = setValue(lines, have, k.name, k.value), have
			continue
		}
		// After the previous key.
		if !strings.HasSuffix(lines[at], "\n") {
			lines[at] += "\n"
		}
		lines = slices.Insert(lines, at+1, k.name+": "+k.value+lineEnd(lines[at]))
		at++
	}
	return strings.Join(lines, ""), nil
}

// quoted puts the keys of a flow value into quotes, so that JSON stays JSON.
func quoted(value string) string {
	return strings.NewReplacer("batch:", `"batch":`, "percent:", `"percent":`).Replace(value)
}

// lineOf returns the index of the line that begins with a key, -1 if there is none.
func lineOf(lines []string, name string) int {
	key := regexp.MustCompile(`^["']?` + name + `["']?\s*:`)
	return slices.IndexFunc(lines, key.MatchString)
}

func lineEnd(line string) string {
	if strings.HasSuffix(line, "\r\n") {
		return "\r\n"
	}
	return "\n"
}

// withComment matches a key's line: the text before its value, and the comment after
// it.
var withComment = regexp.MustCompile(`^([^:]*:\s*)[^#]*?(\s+#.*)?$`)

// setValue gives the key on lines[i] another value. It replaces a value of several
// lines completely, with comments between these lines. It keeps the comment after the
// key.
func setValue(lines []string, i int, name, value string) []string {
	end := lineEnd(lines[i])
	parts := withComment.FindStringSubmatch(strings.TrimRight(lines[i], "\r\n"))
	line := name + ": " + value
	if parts != nil {
		line = strings.TrimRight(parts[1], " \t") + " " + value + parts[2]
	}
	next := i + 1
	for next < len(lines) && lines[next] != "" && strings.ContainsRune(" \t-]", rune(lines[next][0])) {
		next++
	}
	return slices.Replace(lines, i, next, line+end)
}
