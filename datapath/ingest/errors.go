package ingest

import "errors"

// ErrClosed is returned by Receive and Send after Close.
var ErrClosed = errors.New("source is closed")
