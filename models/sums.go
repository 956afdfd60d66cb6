package models

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/penstock/penstock/models/document"
	"github.com/penstock/penstock/private"
)

// sumLine is a line of sha256sum: the sum, and the file's name after a blank and a blank or *.
var sumLine = regexp.MustCompile(`^([0-9a-fA-F]{64}) [ *](.+)$`)

// readSums reads what sha256sum has written, by absolute path. Names begin at the file's folder.
func readSums(file string) (map[string]string, error) {
	text, err := private.ReadFile(file, document.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("read sums: %w", err)
	}
	if file, err = filepath.Abs(file); err != nil {
		return nil, fmt.Errorf("read sums: %w", err)
	}
	sums := map[string]string{}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		parts := sumLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if parts == nil {
			return nil, fmt.Errorf("%s:%d: is %q, want a line of sha256sum: 64 hex digits, two blanks, and a file's name", file, number, line)
		}
		name := parts[2]
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(file), name)
		}
		sum, name := strings.ToLower(parts[1]), filepath.Clean(name)
		if other := sums[name]; other != "" && other != sum {
			return nil, fmt.Errorf("%s:%d: %s has another sum in a line before; want one", file, number, name)
		}
		sums[name] = sum
	}
	return sums, nil
}

// Demand sets the card's Sums to those that a file of sha256sum lists. It returns an error if one of the model's files
// is not listed.
func (c *Card) Demand(sums string) error {
	listed, err := readSums(sums)
	if err != nil {
		return err
	}
	c.Sums = nil
	for _, name := range c.Files() {
		sum := listed[name]
		if sum == "" {
			has, err := sumOf(name)
			if err != nil {
				return err
			}
			return fmt.Errorf("model file %s is not listed in %s; its SHA-256 is %s", name, sums, has)
		}
		c.Sums = append(c.Sums, sum)
	}
	return nil
}

// CheckSum reads one of Files and returns an error if it has another sum than the one of Sums.
func (c *Card) CheckSum(i int) error {
	name := c.Files()[i]
	has, err := sumOf(name)
	if err == nil && has != c.Sums[i] {
		err = fmt.Errorf("model file %s has the SHA-256 %s, and model_sums lists %s; bring back the listed file, or list the new one", name, has, c.Sums[i])
	}
	return err
}

func sumOf(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("compute SHA-256: %w", err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("compute SHA-256 of %s: %w", name, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
