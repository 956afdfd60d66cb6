package configs

import (
	"strconv"
	"strings"
	"time"
)

// PictureRate is a number of pictures per second or minute, written 1/s or 6/min; empty for none.
type PictureRate string

// Interval is the time per picture; 0 for none.
func (r PictureRate) Interval() time.Duration {
	number, unit, _ := strings.Cut(string(r), "/")
	n, err := strconv.Atoi(number)
	switch {
	case err != nil || n <= 0:
		return 0
	case unit == "min":
		return time.Minute / time.Duration(n)
	}
	return time.Second / time.Duration(n)
}
