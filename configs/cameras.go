package configs

import (
	"errors"
	"fmt"
)

// Format is what arrives at a function's port. The zero value is Penstock's protocol.
type Format string

// The formats of cameras.
const (
	FormatGVSP        Format = "gvsp"
	FormatRFC4175     Format = "rfc4175"     // RGB
	FormatRFC4175BGR  Format = "rfc4175-bgr" // BGR
	FormatRFC4175UYVY Format = "rfc4175-uyvy"
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
