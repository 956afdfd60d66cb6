package arrival

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Change is one line of a schedule: from At on, Function has the rate
// PerSecond.
type Change struct {
	At        time.Duration
	Function  string
	PerSecond float64
	// Where is the file and line, for the error if the function does not exist.
	Where string
}

// Schedule is the changes of rates, in order of time.
type Schedule []Change

// ParseSchedule reads a schedule, CSV under the header time,function,rate:
//
//	time,function,rate
//	15s,face,400
//
// Times are durations since the start of the measured run ("15s", "1m30s") and
// never decrease. Rates are requests per second. Every error names the file and
// the line.
func ParseSchedule(name string, data []byte) (Schedule, error) {
	// Spreadsheets put a byte order mark before UTF-8.
	reader := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\ufeff"))))
	reader.Comment = '#'
	reader.TrimLeadingSpace = true
	reader.FieldsPerRecord = 3
	var schedule Schedule
	for first := true; ; first = false {
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return schedule, nil
		}
		if parse := (*csv.ParseError)(nil); errors.As(err, &parse) {
			return nil, fmt.Errorf("%s:%d: %w; want time,function,rate", name, parse.Line, parse.Err)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		line, _ := reader.FieldPos(0)
		where := fmt.Sprintf("%s:%d", name, line)
		for i := range record {
			record[i] = strings.TrimSpace(record[i])
		}
		if first {
			if strings.Join(record, ",") != "time,function,rate" {
				return nil, fmt.Errorf("%s: want the heading time,function,rate", where)
			}
			continue
		}
		schedule, err = schedule.add(where, record[0], record[1], record[2])
		if err != nil {
			return nil, err
		}
	}
}

// Rate returns a function's rate under the schedule if it starts at perSecond.
func (s Schedule) Rate(function string, perSecond float64) Rate {
	rate := At(perSecond)
	for _, change := range s {
		if change.Function == function {
			rate = rate.Then(change.At, change.PerSecond)
		}
	}
	return rate
}

// CheckFunctions returns an error that names the first line whose function is
// not in known.
func (s Schedule) CheckFunctions(known []string) error {
lines:
	for _, change := range s {
		for _, name := range known {
			if change.Function == name {
				continue lines
			}
		}
		return fmt.Errorf("%s: function %q gets no traffic; there are %s", change.Where, change.Function, strings.Join(known, ", "))
	}
	return nil
}

func (s Schedule) add(where, at, function, rate string) (Schedule, error) {
	when, err := time.ParseDuration(at)
	if err != nil || when < 0 {
		return nil, fmt.Errorf("%s: time %q: want a duration since the start, like 15s", where, at)
	}
	perSecond, err := strconv.ParseFloat(rate, 64)
	if err != nil || !(perSecond >= 0) || math.IsInf(perSecond, 0) {
		return nil, fmt.Errorf("%s: rate %q: want a number of requests per second", where, rate)
	}
	if function == "" {
		return nil, fmt.Errorf("%s: the function is missing", where)
	}
	if len(s) > 0 && when < s[len(s)-1].At {
		return nil, fmt.Errorf("%s: time %v is before that of the previous entry, %v", where, when, s[len(s)-1].At)
	}
	return append(s, Change{At: when, Function: function, PerSecond: perSecond, Where: where}), nil
}
