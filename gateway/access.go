package gateway

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/internal/webserver"
)

// TokenFile is the name of the token's file in the runtime folder.
const TokenFile = "gateway.token"

// minToken is the min length of a token, in characters.
const minToken = 16

// access decides which requests are served.
//
// On a loopback address each process of the machine may send requests, as it may send to the
// functions' UDP ports. Pages of other sites that a browser on this machine shows may not
// (webserver.CheckSite, webserver.CheckLoopbackHost). On other addresses each request needs the
// token.
type access struct {
	loopback bool
	token    string
}

func newAccess(address netip.AddrPort, dir, tokenFile string) (*access, error) {
	a := &access{loopback: address.Addr().IsLoopback()}
	if a.loopback {
		return a, nil
	}
	var err error
	if tokenFile == "" {
		a.token, err = madeToken(filepath.Join(dir, TokenFile))
	} else {
		a.token, err = readToken(tokenFile)
	}
	return a, err
}

// madeToken returns the token in a file, which it makes if needed.
func madeToken(file string) (string, error) {
	token, err := readToken(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	token = rand.Text()
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write gateway's token: %w", err)
	}
	return token, nil
}

func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read gateway's token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < minToken {
		return "", fmt.Errorf("read gateway's token: %s has %d characters, want at least %d", file, len(token), minToken)
	}
	return token, nil
}

// guard passes the allowed requests on.
func (a *access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.admit(w, r) {
			return
		}
		if why, status := a.refuse(r); why != "" {
			if status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			writeError(w, status, errors.New(why))
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// refuse returns why a request is not served; "" if it is.
func (a *access) refuse(r *http.Request) (why string, status int) {
	if err := webserver.CheckSite(r); err != nil {
		return err.Error(), http.StatusForbidden
	}
	if a.loopback {
		if err := webserver.CheckLoopbackHost(r); err != nil {
			return err.Error(), http.StatusForbidden
		}
		return "", 0
	}
	if !a.is(a.tokenOf(r)) {
		return "want the header `Authorization: Bearer TOKEN` with the gateway's token, or once ?token=TOKEN in a browser (docs/http.md)", http.StatusUnauthorized
	}
	return "", 0
}

// tokenOf returns the token of a request; empty if it has none.
func (a *access) tokenOf(r *http.Request) string {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return token
	}
	if cookie, err := r.Cookie(tokenCookie); err == nil {
		return cookie.Value
	}
	return ""
}

func (a *access) is(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(a.token)) == 1
}

// tokenCookie has the token in a browser. tokenKey is the key of an address that has it.
const (
	tokenCookie = "penstock_token"
	tokenKey    = "token"
)

// admit keeps the token of a browser's address in a cookie, so that the address can go on
// without it. It reports whether it has answered.
func (a *access) admit(w http.ResponseWriter, r *http.Request) bool {
	token := r.URL.Query().Get(tokenKey)
	if a.loopback || token == "" || r.Method != http.MethodGet || !a.is(token) {
		return false
	}
	http.SetCookie(w, &http.Cookie{Name: tokenCookie, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	rest := r.URL.Query()
	rest.Del(tokenKey)
	// A path with two slashes would be another host's address.
	to := url.URL{Path: "/" + strings.TrimLeft(r.URL.Path, "/"), RawQuery: rest.Encode()}
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
	return true
}
