package capi

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/libml/device"
	"github.com/penstock/penstock/libml/framework"
)

// errorCode is the result of calls and callbacks: enum penstock_code of penstock.h.
type errorCode int32

// The codes of penstock.h.
const (
	codeOK          errorCode = 0
	codeFailed      errorCode = 1
	codeNoHostStage errorCode = 2
	codeOutOfMemory errorCode = 3
	codeDeviceLost  errorCode = 4
	codeNotShared   errorCode = 5
	codeWrong       errorCode = 6
)

// codedError is the error of a callback. It wraps cuda.ErrOutOfMemory, device.ErrLost or
// device.ErrWrongAnswers if the callback returned that code.
type codedError struct {
	// Callback is the field of the table, "infer_batch".
	Callback string
	// Code is its result.
	Code errorCode
	// Reason is the line that it left with penstock_error; may be empty.
	Reason string
}

// Error begins with the callback's name only for infer_batch: libml's errors name the other steps.
func (e *codedError) Error() string {
	if e.Callback == "infer_batch" {
		return e.Callback + ": " + e.text()
	}
	return e.text()
}

// text returns the reason, without the callback's name.
func (e *codedError) text() string {
	reason := e.Reason
	if reason == "" {
		reason = "no reason given (penstock_error sets one)"
	}
	switch e.Code {
	case codeFailed, codeWrong:
	case codeOutOfMemory:
		// Not cuda.ErrOutOfMemory's text: the callback may have run on a CPU.
		return "out of memory: " + reason
	case codeDeviceLost:
		return fmt.Sprintf("%v: %s", device.ErrLost, reason)
	case codeNoHostStage:
		return e.Callback + " returned PENSTOCK_NO_HOST_STAGE, which only load_model may"
	default:
		return fmt.Sprintf("returned %d, want PENSTOCK_OK (0), PENSTOCK_FAILED (1), PENSTOCK_OUT_OF_MEMORY (3), PENSTOCK_DEVICE_LOST (4) or PENSTOCK_WRONG_ANSWERS (6): %s",
			e.Code, reason)
	}
	return reason
}

// Unwrap returns the error that libml checks for, or nil.
func (e *codedError) Unwrap() error {
	switch e.Code {
	case codeOutOfMemory:
		return cuda.ErrOutOfMemory
	case codeDeviceLost:
		return device.ErrLost
	case codeWrong:
		return device.ErrWrongAnswers
	}
	return nil
}

// codeOf returns penstock_run's code for an error.
func codeOf(err error) errorCode {
	switch {
	case err == nil:
		return codeOK
	case errors.Is(err, device.ErrLost), errors.Is(err, cuda.ErrLost):
		return codeDeviceLost
	}
	return codeFailed
}

// errorOf returns libml's error for the result of a callback.
func errorOf(name string, code errorCode, reason string) error {
	if code == codeOK {
		return nil
	}
	if code == codeNoHostStage && name == "load_model" {
		return framework.ErrNoHostStage
	}
	return &codedError{Callback: name, Code: code, Reason: line(reason)}
}

// line converts a text from C to one line.
func line(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	return strings.TrimSpace(text)
}
