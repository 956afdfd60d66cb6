package wire

import (
	"strings"
	"testing"
)

func TestPictureCheck(t *testing.T) {
	const largest = 4 * 1920 * 1200
	for _, row := range []struct {
		name    string
		picture Picture
		total   int
		want    string // part of the error; empty for none
	}{
		{"nv12", Picture{FormatNV12, 1920, 1080, 0, 0}, 3110400, ""},
		{"stride", Picture{FormatRGB8, 3, 2, 16, 0}, 32, ""},
		{"the largest", Picture{FormatRGBA8, 1920, 1200, 0, 0}, largest, ""},
		{"uyvy10", Picture{FormatUYVY10, 6, 3, 0, 0}, 45, ""},
		{"rgb10", Picture{FormatRGB10, 5, 2, 0, 0}, 38, ""},
		{"yyyyuv", Picture{FormatYYYYUV, 4, 6, 0, 0}, 36, ""},
		{"two rows of yyyyuv in one", Picture{FormatYYYYUV, 4, 6, 20, 0}, 60, ""},
		{"odd height of yyyyuv", Picture{FormatYYYYUV, 4, 5, 0, 0}, 30, "want even numbers for yyyyuv"},
		{"other total", Picture{FormatNV12, 1920, 1080, 0, 0}, 3110399, "has 3110400 bytes, and the request 3110399"},
		{"stride below the width", Picture{FormatGrey8, 100, 1, 99, 0}, 99, "stride of 99 bytes, want 100 to 16777215 for 100 pixels of grey8"},
		{"odd width", Picture{FormatNV12, 3, 2, 0, 0}, 9, "want even numbers for nv12"},
		{"odd height", Picture{FormatNV12, 2, 3, 0, 0}, 9, "want even numbers for nv12"},
		{"no pixels", Picture{FormatRGB8, 0, 0, 0, 0}, 1, "0 x 0 pixels, want 1 to 65535 on each side"},
		{"65,535 squared", Picture{FormatRGB8, 65535, 65535, 0, 0}, 1, "has 12884508675 bytes, and the function takes at most 9216000"},
		{"wide", Picture{FormatGrey8, 65536, 1, 0, 0}, 65536, "65536 x 1 pixels, want 1 to 65535 on each side"},
		{"high stride", Picture{FormatGrey8, 2, 65535, MaxStride, 0}, 1, "at most 9216000"},
		{"higher stride", Picture{FormatGrey8, 2, 1, MaxStride + 1, 0}, MaxStride + 1, "stride of 16777216 bytes, want 2 to 16777215"},
		{"unknown colours", Picture{FormatUYVY, 2, 1, 0, 3}, 4, "colours 3, which are unknown; want 0 to 2, or 4 to 6"},
		{"unknown format", Picture{99, 4, 4, 0, 0}, 48, "format 99, which is unknown; want one of docs/wire.md"},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := row.picture.Check(row.total, largest)
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("error is %v, want %q", err, row.want)
			}
		})
	}
	if err := (Picture{FormatRGB8, 1, 1, 0, 0}).Check(3, 0); err == nil || !strings.Contains(err.Error(), "max_picture") {
		t.Errorf("error is %v, want the key to set", err)
	}
}
