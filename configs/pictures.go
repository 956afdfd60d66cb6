package configs

import (
	"fmt"
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

// PictureSize is a width and a height, written 1920x1200; empty for none.
type PictureSize string

// Size returns width and height; 0 for none.
func (s PictureSize) Size() (width, height int) {
	if _, err := fmt.Sscanf(string(s), "%dx%d", &width, &height); err != nil {
		return 0, 0
	}
	return width, height
}

// Bytes is the size of such a picture with 4 bytes per pixel, as many as any format has; 0 for none.
func (s PictureSize) Bytes() int {
	width, height := s.Size()
	return 4 * width * height
}
