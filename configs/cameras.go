package configs

import (
	"errors"
	"fmt"
	"slices"
)

// Format is what arrives at a function's port. The zero value is Penstock's protocol.
type Format string

// The formats of cameras.
const (
	FormatGVSP          Format = "gvsp"
	FormatRFC4175       Format = "rfc4175"     // RGB
	FormatRFC4175BGR    Format = "rfc4175-bgr" // BGR
	FormatRFC4175UYVY   Format = "rfc4175-uyvy"
	FormatRFC4175UYVY10 Format = "rfc4175-uyvy10"
	FormatRFC4175RGB10  Format = "rfc4175-rgb10"
	FormatRFC4175YYYYUV Format = "rfc4175-yyyyuv" // 4:2:0
)

// checkKey returns an error if the function's clients cannot have a key.
func (f *Function) checkKey() error {
	if f.Key != "" && f.Format != "" {
		return fmt.Errorf("is for clients, and a camera (format: %s) has no key; delete it", f.Format)
	}
	return nil
}

// checkAllowed returns an error if the function's senders are no cameras.
func (f *Function) checkAllowed() error {
	if len(f.Allowed) > 0 && f.Format == "" {
		return errors.New("is for cameras, and clients can have a key; delete it and set `key`, or set `format`")
	}
	return nil
}

// checkColours returns an error if the function's cameras cannot send Y, U and V.
func (f *Function) checkColours() error {
	rgb := slices.Contains([]Format{"", FormatRFC4175, FormatRFC4175BGR, FormatRFC4175RGB10}, f.Format)
	if f.Colours != "" && (rgb || f.Format == FormatGVSP && f.MaxPicture == "") {
		return errors.New("is for cameras that send Y, U and V (of GigE Vision, with `max_picture`); delete it, or set such a `format`")
	}
	return nil
}

// checkAnswersTo returns an error if answers cannot go to the function's receiver.
func (f *Function) checkAnswersTo() error {
	switch to := f.AnswersTo; {
	case to == nil, !to.IsValid(): // not valid: the key's text is wrong, and already reported
		return nil
	case f.Format == "":
		return errors.New("is for cameras, and clients get their answers themselves; delete the key, or set `format`")
	case to.Port() == 0, to.Addr().IsUnspecified():
		return fmt.Errorf("is %s, want the address and port of a receiver", to)
	}
	return nil
}
