package gpu

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/testing/must"
)

const claimed = "GPU-1"

// TestMain is another node if a test starts it with HOLD. That node has the GPU until its standard input ends.
func TestMain(m *testing.M) {
	dir := os.Getenv("HOLD")
	if dir == "" {
		os.Exit(m.Run())
	}
	_, err := Here{Dir: dir}.Claim(claimed)
	fmt.Printf("claimed %v\n", err)
	bufio.NewReader(os.Stdin).ReadByte()
}

// hold starts another node, of the user uid.
func hold(t *testing.T, dir string, uid int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Dir = append(os.Environ(), "HOLD="+dir), "/"
	if uid != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	stdin, err := cmd.StdinPipe()
	must.OK(t, err)
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "claimed <nil>\n" {
		t.Fatalf("the other node says %q, %v", line, err)
	}
	return cmd
}

func TestClaim(t *testing.T) {
	folder := t.TempDir()
	must.OK(t, os.Chmod(folder, 0o777|os.ModeSticky))
	must.OK(t, os.Chmod(filepath.Dir(folder), 0o755))
	t.Setenv(LocksVariable, folder)
	here := Here{Dir: "/run/here"}
	taken := func(want string) {
		t.Helper()
		if _, err := here.Claim(claimed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	free := func() {
		t.Helper()
		release, err := here.Claim(claimed)
		must.OK(t, err)
		taken("the same GPU as another device of this node")
		release()
	}
	free()

	users := []int{os.Getuid()}
	if os.Getuid() == 0 {
		users = append(users, 65534)
	}
	for _, uid := range users {
		other := hold(t, "/run/other", uid)
		taken(fmt.Sprintf(`another node has GPU-1: process %d, with runtime folder "/run/other"; stop that node`, other.Process.Pid))
		release, err := here.Claim("MIG-GPU-1/1/0") // an instance is another device
		must.OK(t, err)
		release()
		must.OK(t, other.Process.Kill())
		other.Wait()
		free()
	}

	// The other user's file may have anything in it.
	path := filepath.Join(folder, "penstock-"+claimed+".lock")
	must.OK(t, os.WriteFile(path, []byte("\x1b[2J"), 0o666))
	free()
	for name, spoil := range map[string]func() error{
		"a link":   func() error { return os.Symlink("/etc/passwd", path) },
		"a folder": func() error { return os.Mkdir(path, 0o777) },
	} {
		must.OK(t, os.Remove(path))
		must.OK(t, spoil())
		if release, err := here.Claim(claimed); err != nil {
			t.Errorf("%s: %v, want it to go on without a claim", name, err)
		} else {
			release()
		}
	}
}
