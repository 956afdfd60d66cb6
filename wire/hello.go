package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// Hello is the contents of a datagram of TypeHello or TypeProof. With them a client gets the token of a
// function with keys.
//
//	hello  client -> manager   the client's nonce
//	hello  manager -> client   the same, and the manager's challenge
//	proof  client -> manager   both, and their HMAC-SHA256 under a key of the function
//	proof  manager -> client   the nonce and the token; 0 if the function has no such key
//
// All have the same size, so that an answer is never larger than its question. After the header, 56 bytes:
//
//	 0  16 × nonce
//	16  u64 the manager's value: 0, the challenge, or the token
//	24  32 × HMAC of the 24 bytes before it; zero except in a client's proof
type Hello struct {
	Nonce [NonceBytes]byte
	Value uint64
	Proof [sha256.Size]byte
}

// NonceBytes is the size of a client's random value.
const NonceBytes = 16

const (
	signedBytes = NonceBytes + 8
	helloBytes  = signedBytes + sha256.Size
)

// HelloSize is the size of each datagram of TypeHello and TypeProof.
const HelloSize = HeaderSize + helloBytes

// Append appends the datagram of a type: TypeHello or TypeProof.
func (h *Hello) Append(dst []byte, t Type) []byte {
	header := FragmentHeader(t, 0, helloBytes, helloBytes, 0)
	at := len(dst)
	dst = append(dst, make([]byte, HelloSize)...)
	header.Put(dst[at:])
	copy(dst[at+HeaderSize:], h.signed())
	copy(dst[at+HeaderSize+signedBytes:], h.Proof[:])
	return dst
}

// DecodeHello reads a datagram of TypeHello or TypeProof.
func DecodeHello(b []byte) (t Type, h Hello, err error) {
	header, err := DecodeHeader(b)
	switch {
	case err != nil:
		return 0, h, err
	case header.Type != TypeHello && header.Type != TypeProof:
		return 0, h, ErrType
	case header.Length != helloBytes || header.Count != 1:
		return 0, h, ErrLength
	}
	b = b[HeaderSize:]
	h.Nonce, h.Proof = [NonceBytes]byte(b), [sha256.Size]byte(b[signedBytes:])
	h.Value = binary.LittleEndian.Uint64(b[NonceBytes:])
	return header.Type, h, nil
}

func (h *Hello) signed() []byte {
	return binary.LittleEndian.AppendUint64(h.Nonce[:NonceBytes:NonceBytes], h.Value)
}

// Sign sets the proof under a key. It allocates.
func (h *Hello) Sign(key []byte) {
	mac := hmac.New(sha256.New, key)
	mac.Write(h.signed())
	mac.Sum(h.Proof[:0])
}

// Signed reports whether the proof is that of a key. It allocates.
func (h *Hello) Signed(key []byte) bool {
	right := *h
	right.Sign(key)
	return hmac.Equal(right.Proof[:], h.Proof[:])
}
