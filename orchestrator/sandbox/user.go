package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// User is the user that a program runs as.
type User struct {
	Name   string `json:"name"`
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	Groups []int  `json:"groups,omitempty"` // supplementary groups, for example for GPU devices
}

// The users to try if the configuration names none.
const (
	systemUser   = "penstock"
	fallbackUser = "nobody"
)

// FindUser returns the user that programs run as. That is the named user; without a
// name it is penstock if the machine has that user, else nobody. If this process is not
// root, programs keep its user: FindUser returns nil, and the name must be that user's.
func FindUser(name string) (*User, error) {
	if uid := os.Geteuid(); uid != 0 {
		if name == "" {
			return nil, nil
		}
		u, err := FindAccount(name)
		if err == nil && u.UID != uid {
			err = fmt.Errorf("only root can start processes as user %s; start the node as root or as %s", name, name)
		}
		return nil, err
	}
	if name != "" {
		u, err := FindAccount(name)
		if err == nil && u.UID == 0 {
			return nil, fmt.Errorf("user %s is root; name an unprivileged user in sandbox.user, or set sandbox: off", name)
		}
		return u, err
	}
	u, err := FindAccount(systemUser)
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		u, err = FindAccount(fallbackUser)
	}
	if err == nil && u.UID == 0 {
		return nil, fmt.Errorf("user %s is root; name an unprivileged user in sandbox.user", u.Name)
	}
	return u, err
}

// FindAccount returns the user of a name, with its groups.
func FindAccount(name string) (*User, error) {
	found, err := user.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("look up user %s: %w", name, err)
	}
	u := &User{Name: found.Username}
	if u.UID, err = strconv.Atoi(found.Uid); err != nil {
		return nil, fmt.Errorf("look up user %s: user id %q", name, found.Uid)
	}
	if u.GID, err = strconv.Atoi(found.Gid); err != nil {
		return nil, fmt.Errorf("look up user %s: group id %q", name, found.Gid)
	}
	groups, err := found.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("look up groups of %s: %w", name, err)
	}
	for _, g := range groups {
		if gid, err := strconv.Atoi(g); err == nil && gid != 0 && gid != u.GID {
			u.Groups = append(u.Groups, gid)
		}
	}
	return u, nil
}
