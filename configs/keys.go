package configs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/private"
)

// Key says what a client of the gateway may do. It contains the hash of the client's secret. A random
// secret cannot be computed from its hash.
type Key struct {
	// Name in errors of the gateway.
	Name   string    `yaml:"name" required:"true" pattern:"^[a-z0-9][a-z0-9_-]{0,63}$" want:"lower case letters, digits, '-' and '_', at most 64"`
	SHA256 SHA256    `yaml:"sha256" required:"true" secret:"true" want:"64 hex digits, as penstock key prints them"`
	Until  time.Time `yaml:"until" want:"a time like 2027-01-31T00:00:00Z"`
	// Functions are names, in which * stands for any characters.
	Functions  []string    `yaml:"functions" required:"true" minItems:"1" maxItems:"256" pattern:"^[a-z0-9_*-]{1,64}$" want:"the name of a function, or a pattern like \"cam-*\""`
	Operations []Operation `yaml:"operations" required:"true" minItems:"1" unique:"true" oneof:"infer|look|change"`
}

// SHA256 is a checksum, in hex in files.
type SHA256 [sha256.Size]byte

// UnmarshalText reads hex.
func (s *SHA256) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(s)) {
		return hex.ErrLength
	}
	_, err := hex.Decode(s[:], text)
	return err
}

func (s SHA256) String() string { return hex.EncodeToString(s[:]) }

// Operation is a kind of requests to the gateway.
type Operation string

// The values of Operation.
const (
	// OperationDescribe reads which functions there are, and what they take. Each key may do so for its own.
	OperationDescribe Operation = ""

	OperationInfer  Operation = "infer"
	OperationLook   Operation = "look" // the page with its pictures, statistics and metrics
	OperationChange Operation = "change"
)

// AllFunctions in place of a function's name stands for the whole node.
const AllFunctions = "*"

// Allows reports whether the key is for a function.
func (k *Key) Allows(function string) bool {
	return slices.ContainsFunc(k.Functions, func(pattern string) bool {
		ok, _ := path.Match(pattern, function) // the file's patterns are valid
		return ok
	})
}

// ReadKeys reads a file of keys. The error lists all faults, as Read does.
func ReadKeys(file string) ([]Key, error) {
	text, err := private.ReadFile(file, document.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	return DecodeKeys(file, text)
}

// DecodeKeys is ReadKeys for the text of a file.
func DecodeKeys(file string, text []byte) ([]Key, error) {
	if !bytes.Contains(text, []byte("keys:")) { // it may be a secret, which no error may contain
		return nil, fmt.Errorf("%s has no `keys:`, want a list of keys, as `penstock key` prints them", file)
	}
	doc, err := document.Parse(file, text)
	if err != nil {
		return nil, err
	}
	var list struct {
		Keys []Key `yaml:"keys" required:"true" maxItems:"256" want:"{name: NAME, sha256: HASH, functions: [FUNCTION], operations: [infer]}"`
	}
	doc.Root().Decode(&list)
	for i, k := range list.Keys {
		same := func(other Key) bool { return other.SHA256 == k.SHA256 && k.SHA256 != SHA256{} }
		if slices.ContainsFunc(list.Keys[:i], same) {
			doc.Root().Find("keys", i, "sha256").Reject("is that of another key; want one secret per key")
		}
	}
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return list.Keys, nil
}
