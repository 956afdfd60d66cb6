package gateway

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/follow"
	"github.com/penstock/penstock/internal/webserver"
)

// TokenFile is the name of the file in the runtime folder with the secret of the key that a gateway makes.
const TokenFile = "gateway.token"

// minToken is the min length of that secret, in characters.
const minToken = 16

// access decides which requests are served:
//
//  1. Pages of other sites may not ask. On a loopback address, Host must be a name of it (package webserver).
//  2. The request's secret is that of a key, which has not expired. If there are no keys, each request has everyone's.
//  3. The key is in the request's context. Routes of the whole node, and each look-up of a function, ask what it allows.
//
// Without a file of keys each process of the machine may send requests to a loopback address, as it may send to
// the functions' UDP ports. On other addresses there is then one key, which the gateway makes.
type access struct {
	loopback bool
	file     string // of the keys; empty for none
	// everyone is the key of requests if none is needed, else nil.
	everyone *key
	keys     atomic.Pointer[[]*key]
	refused  *prometheus.CounterVec
	log      zerolog.Logger
}

// key is a key that is in force. Its pointer stays the same while its part of the file does.
type key struct {
	configs.Key
	// valid ends when the key expires or leaves the file. Then its requests end, too.
	valid context.Context
	end   context.CancelFunc
	// forbidden counts requests that the key does not allow.
	forbidden prometheus.Counter
}

// The reasons why requests are refused, as the metric has them.
const (
	refusedMissing   = "missing"
	refusedWrong     = "wrong"
	refusedExpired   = "expired"
	refusedForbidden = "forbidden"
)

func newAccess(address netip.AddrPort, dir, file string, log zerolog.Logger) (*access, error) {
	a := &access{loopback: address.Addr().IsLoopback(), file: file, log: log, refused: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_gateway_refused_total", Help: "Requests refused because of their key: missing, wrong, expired, or forbidden by it.",
	}, []string{"reason"})}
	for _, reason := range []string{refusedMissing, refusedWrong, refusedExpired, refusedForbidden} {
		a.refused.WithLabelValues(reason) // shows 0
	}
	all := configs.Key{
		Name: TokenFile, Functions: []string{configs.AllFunctions},
		Operations: []configs.Operation{configs.OperationInfer, configs.OperationLook, configs.OperationChange},
	}
	switch {
	case file != "":
		keys, err := configs.ReadKeys(file)
		if err != nil {
			return nil, err
		}
		a.replace(keys)
	case a.loopback:
		a.everyone = a.enforce(all)
	default:
		token, err := madeToken(filepath.Join(dir, TokenFile))
		if err != nil {
			return nil, err
		}
		all.SHA256 = sha256.Sum256([]byte(token))
		a.replace([]configs.Key{all})
	}
	return a, nil
}

// madeToken returns the secret in a file, which it makes if needed.
func madeToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(rand.Text() + "\n")
		err = os.WriteFile(file, text, 0o600)
	}
	token := strings.TrimSpace(string(text))
	if err == nil && len(token) < minToken {
		err = fmt.Errorf("%s has %d characters, want at least %d; delete it", file, len(token), minToken)
	}
	if err != nil {
		return "", fmt.Errorf("make gateway's key: %w", err)
	}
	return token, nil
}

// enforce puts a key in force.
func (a *access) enforce(k configs.Key) *key {
	enforced := &key{Key: k, forbidden: a.refused.WithLabelValues(refusedForbidden)}
	if k.Until.IsZero() {
		enforced.valid, enforced.end = context.WithCancel(context.Background())
	} else {
		enforced.valid, enforced.end = context.WithDeadline(context.Background(), k.Until)
	}
	return enforced
}

// replace puts other keys in force. Requests of a key that is no longer among them end.
func (a *access) replace(keys []configs.Key) {
	var before, now []*key
	if p := a.keys.Load(); p != nil {
		before = *p
	}
	for _, k := range keys {
		same := slices.IndexFunc(before, func(old *key) bool { return reflect.DeepEqual(old.Key, k) })
		if same >= 0 {
			now = append(now, before[same])
		} else {
			now = append(now, a.enforce(k))
		}
	}
	a.keys.Store(&now)
	for _, old := range before {
		if !slices.Contains(now, old) {
			old.end()
		}
	}
}

// follow puts the keys of the file in force after each edit, until ctx ends. A wrong file changes nothing.
func (a *access) follow(ctx context.Context) {
	if a.file == "" {
		return
	}
	follow.Files(ctx, a.log, "keys rejected; keeping the last ones", func() error {
		keys, err := configs.ReadKeys(a.file)
		if err != nil {
			return err
		}
		a.replace(keys)
		a.log.Info().Str("file", a.file).Int("keys", len(keys)).Msg("keys in force")
		return nil
	}, a.file)
}

// guard passes the allowed requests on.
func (a *access) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := a.checkOrigin(r); err != nil {
			writeError(w, http.StatusForbidden, err)
			return
		}
		if a.admit(w, r) {
			return
		}
		k, reason := a.find(secretOf(r))
		if k == nil {
			a.refused.WithLabelValues(reason).Inc()
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeError(w, http.StatusUnauthorized, fmt.Errorf("key is %s, want the header `Authorization: Bearer SECRET` with the secret of a key, "+
				"or once ?token=SECRET in a browser (docs/security.md)", reason))
			return
		}
		ctx, cancel := context.WithCancel(context.WithValue(r.Context(), keyOfRequest{}, k))
		defer cancel()
		defer context.AfterFunc(k.valid, cancel)()
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// checkOrigin returns why a browser must not make a request.
func (a *access) checkOrigin(r *http.Request) error {
	err := webserver.CheckSite(r)
	if err == nil && a.loopback {
		err = webserver.CheckLoopbackHost(r)
	}
	return err
}

// find returns the key with a secret, or the reason why there is none.
func (a *access) find(secret string) (found *key, reason string) {
	if a.everyone != nil {
		return a.everyone, ""
	}
	if secret == "" {
		return nil, refusedMissing
	}
	// The time depends on the number of keys alone.
	sum := sha256.Sum256([]byte(secret))
	for _, k := range *a.keys.Load() {
		if subtle.ConstantTimeCompare(sum[:], k.SHA256[:]) == 1 {
			found = k
		}
	}
	switch {
	case found == nil:
		return nil, refusedWrong
	case !found.Until.IsZero() && !time.Now().Before(found.Until):
		return nil, refusedExpired
	}
	return found, ""
}

// secretOf returns the secret of a request; empty if it has none.
func secretOf(r *http.Request) string {
	if secret, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return secret
	}
	if cookie, err := r.Cookie(tokenCookie); err == nil {
		return cookie.Value
	}
	return ""
}

// tokenCookie has the secret in a browser. tokenKey is the key of an address that has it.
const (
	tokenCookie = "penstock_token"
	tokenKey    = "token"
)

// admit keeps the secret of a browser's address in a cookie, so that the address can go on
// without it. It reports whether it has answered.
func (a *access) admit(w http.ResponseWriter, r *http.Request) bool {
	secret := r.URL.Query().Get(tokenKey)
	if a.everyone != nil || secret == "" || r.Method != http.MethodGet {
		return false
	}
	if k, _ := a.find(secret); k == nil {
		return false
	}
	http.SetCookie(w, &http.Cookie{Name: tokenCookie, Value: secret, Path: "/", HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
	rest := r.URL.Query()
	rest.Del(tokenKey)
	// A path with two slashes would be another host's address.
	to := url.URL{Path: "/" + strings.TrimLeft(r.URL.Path, "/"), RawQuery: rest.Encode()}
	http.Redirect(w, r, to.String(), http.StatusSeeOther)
	return true
}

// keyOfRequest is the context key of a request's *key.
type keyOfRequest struct{}

// keyOf returns the key of a request; nil if it did not pass guard.
func keyOf(ctx context.Context) *key {
	k, _ := ctx.Value(keyOfRequest{}).(*key)
	return k
}

// permit returns an error if a request's key does not allow an operation with a function. An empty name stands for any
// function of the key.
func permit(ctx context.Context, operation configs.Operation, function string) error {
	k := keyOf(ctx)
	switch {
	case k == nil:
		return &httpError{http.StatusForbidden, errors.New("request has no key")}
	case operation != configs.OperationDescribe && !slices.Contains(k.Operations, operation):
		k.forbidden.Inc()
		return &httpError{http.StatusForbidden, fmt.Errorf("key %s does not allow the operation %s", k.Name, operation)}
	case function != "" && !k.Allows(function):
		k.forbidden.Inc()
		return &httpError{http.StatusForbidden, fmt.Errorf("key %s is not for the function %q", k.Name, function)}
	}
	return nil
}

// allow passes on requests whose key allows an operation with the whole node.
func allow(operation configs.Operation, next http.Handler) http.Handler {
	return handler(func(w http.ResponseWriter, r *http.Request) error {
		if err := permit(r.Context(), operation, configs.AllFunctions); err != nil {
			return err
		}
		next.ServeHTTP(w, r)
		return nil
	})
}
