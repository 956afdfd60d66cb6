package gateway

import (
	"compress/gzip"
	"compress/zlib"
	"context"
	"io"
	"net/http"
)

// inflateBytes is the memory to decompress a body: a window of 32 KiB, tables and a buffer.
const inflateBytes = 64 << 10

// takeEncoding returns the encoding that inflate knows, and takes it out of a header; empty: there is none.
func takeEncoding(h http.Header, name string) (encoding string) {
	if encoding = h.Get(name); encoding != "gzip" && encoding != "deflate" {
		return ""
	}
	h.Del(name)
	return encoding
}

// inflate is read for a body that is compressed by gzip or deflate (zlib). It fails with http.MaxBytesError if it has more bytes.
func (m *memory) inflate(ctx context.Context, encoding string, from io.Reader, most int64) (*buffer, error) {
	return m.load(func(b *buffer) error {
		if err := b.reserve(ctx, inflateBytes); err != nil {
			return err
		}
		open := zlib.NewReader
		if encoding == "gzip" {
			open = func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }
		}
		inflated, err := open(from)
		if err == nil {
			err = b.fill(ctx, http.MaxBytesReader(nil, inflated, most), most)
		}
		if err == nil {
			_, err = io.Copy(io.Discard, from) // the server waits for the end of a request
		}
		return err
	})
}
