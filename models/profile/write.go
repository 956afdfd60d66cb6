package profile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Write writes a profile as Read reads it: the same profile, the same bytes. Points
// are written in ascending order, whatever order they are in.
func Write(w io.Writer, p Profile) error {
	header, err := json.MarshalIndent(p.Header, "# ", "  ")
	if err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# %s\n%s,%s\n", header, strings.Join(columns, ","), memoryColumn)
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

func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
