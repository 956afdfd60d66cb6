package publish

import (
	"errors"
	"fmt"
	"strings"

	"github.com/penstock/penstock/private"
)

// maxTokenFile is the max size of a token's file, in bytes.
const maxTokenFile = 8 << 10

// ReadToken reads the token of a webhook from a file. Errors contain nothing of the file.
func ReadToken(path string) (string, error) {
	text, err := private.ReadFile(path, maxTokenFile)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	switch {
	case token == "":
		return "", fmt.Errorf("read token: %s is empty; want one token", path)
	case strings.ContainsFunc(token, notInToken):
		return "", fmt.Errorf("read token: %s has blanks, quotes or characters beyond ASCII; want one token, without \"Bearer\"", path)
	}
	return token, nil
}

// notInToken reports a character that no token has. Without quotes and backslashes a token looks the
// same in a quoted error, where hideToken finds it.
func notInToken(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '\\' }

// hideToken removes a token from an error: a server may send back what it got.
func hideToken(err error, token string) error {
	if token == "" || errors.Is(err, errRefused) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), token, "***"))
}
