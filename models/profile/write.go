package profile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Write writes a profile in the form that Read reads. The same profile gives the
// same bytes. It writes points in ascending order, regardless of their order in p.
func Write(w io.Writer, p Profile) error {
	header, err := json.Marshal(p.Header)
	if err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	b := bufio.NewWriter(w)
	if err := writeComment(b, header); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	fmt.Fprintln(b, strings.Join(columns, ","))
	points := slices.SortedFunc(slices.Values(p.Points), Point.Compare)
	for _, q := range points {
		fmt.Fprintf(b, "%d,%d,%d,%s,%s,%s\n", q.Share, q.Batch, q.Processes,
			decimal(q.Throughput), decimal(q.Latency.Seconds()), decimal(q.MemoryMiB))
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	return nil
}

// writeComment writes a JSON object in comment lines, one field per line.
func writeComment(w io.Writer, object []byte) error {
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil { // {
		return err
	}
	fmt.Fprint(w, "# {")
	for end := "\n"; d.More(); end = ",\n" {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s#   %q: %s", end, key, value)
	}
	_, err := fmt.Fprint(w, "\n# }\n")
	return err
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
