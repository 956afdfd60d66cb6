package uyvy

import (
	"bytes"
	"testing"
)

func TestToRGB(t *testing.T) {
	for _, row := range []struct {
		name       string
		uyvy, want []byte
	}{
		{"black and white", []byte{128, 16, 128, 235}, []byte{0, 0, 0, 255, 255, 255}},
		{"grey", []byte{128, 126, 128, 126}, []byte{128, 128, 128, 128, 128, 128}},
		{"red", []byte{90, 81, 240, 81}, []byte{255, 0, 0, 255, 0, 0}},
		{"green", []byte{54, 145, 34, 145}, []byte{0, 255, 1, 0, 255, 1}},
		{"blue", []byte{240, 41, 110, 41}, []byte{0, 0, 255, 0, 0, 255}},
		{"beyond the range", []byte{0, 0, 255, 255}, []byte{184, 0, 0, 255, 225, 20}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := make([]byte, 6)
			if ToRGB(got, row.uyvy); !bytes.Equal(got, row.want) {
				t.Errorf("got %v, want %v", got, row.want)
			}
		})
	}
}
