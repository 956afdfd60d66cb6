package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/control/oomscore"
	"github.com/penstock/penstock/internal/testing/must"
)

const unitFile = "penstock.service"

// setting returns the value of a key of the unit.
func setting(t *testing.T, unit, key string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindStringSubmatch(unit)
	if found == nil {
		t.Fatalf("%s lacks %s", unitFile, key)
	}
	return found[1]
}

func readUnit(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	must.OK(t, err)
	return string(text)
}

func TestUnit(t *testing.T) {
	unit := readUnit(t)
	for key, want := range map[string]string{"Type": "notify", "NotifyAccess": "main", "KillMode": "mixed", "User": "penstock", "RuntimeDirectory": "penstock",
		"OOMScoreAdjust": strconv.Itoa(oomscore.Core)} {
		if got := setting(t, unit, key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	if command := setting(t, unit, "ExecStart"); !strings.Contains(command, " --config /etc/penstock/penstock.yaml ") || !strings.Contains(command, " --runtime-dir /run/penstock") {
		t.Errorf("ExecStart is %s", command)
	}
	users, err := os.ReadFile("penstock.sysusers")
	if err != nil || !strings.Contains(string(users), "\nu penstock - ") {
		t.Errorf("penstock.sysusers does not make the user: %v", err)
	}
}

// maxExposure is the highest accepted rating of `systemd-analyze security`, in tenths.
const maxExposure = "50"

// TestAnalyze checks the unit with systemd's own program.
func TestAnalyze(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("not on this machine: systemd-analyze is missing (apt-get install systemd)")
	}
	// The program and the manual need not be installed here.
	unit := strings.ReplaceAll(readUnit(t), "ExecStart=/usr/bin/penstock", "ExecStart=/bin/true")
	file := filepath.Join(t.TempDir(), unitFile)
	must.OK(t, os.WriteFile(file, []byte(unit), 0o600))
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput()
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		newer := strings.Contains(line, "DelegateSubgroup") // systemd before 254
		if strings.Contains(line, unitFile) && !newer {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
	if err != nil {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	out, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold="+maxExposure, file).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}
