// Package uyvy converts the pixels of cameras that send UYVY: 8 bit, with one colour for two pixels.
package uyvy

// ToRGB converts UYVY (ITU-R BT.601, limited range) to RGB. Each 4 bytes of uyvy are two pixels,
// 6 bytes of rgb. It leaves out an incomplete pair at the end.
func ToRGB(rgb, uyvy []byte) {
	for ; len(uyvy) >= 4; uyvy, rgb = uyvy[4:], rgb[6:] {
		u, v := int(uyvy[0])-128, int(uyvy[2])-128
		for i, y := range [2]byte{uyvy[1], uyvy[3]} {
			luma := 298 * (int(y) - 16) // the factors are 256 times those of BT.601
			rgb[3*i] = clamp((luma + 409*v + 128) >> 8)
			rgb[3*i+1] = clamp((luma - 100*u - 208*v + 128) >> 8)
			rgb[3*i+2] = clamp((luma + 516*u + 128) >> 8)
		}
	}
}

func clamp(v int) byte { return byte(min(max(v, 0), 255)) }
