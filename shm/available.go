package shm

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// checkMemory refuses a size that the machine, or this process's memory
// cgroups, cannot give now. An unnamed file has no limit of its own: the kernel
// would accept any size, and later kill a process for lack of memory.
func checkMemory(root string, size int) error {
	free, holder := availableMemory(root)
	if int64(size) > free {
		return fmt.Errorf("%s has %d bytes available: %w", holder, free, unix.ENOMEM)
	}
	return nil
}

// availableMemory returns how many bytes can be taken before the kernel must
// kill a process, and what sets that limit. A limit that cannot be read does
// not count. Root is "/" except in tests.
func availableMemory(root string) (free int64, holder string) {
	free, holder = math.MaxInt64, "the machine"
	if kib, ok := readField(path.Join(root, "proc/meminfo"), "MemAvailable:"); ok {
		free = kib << 10
	}
	for _, group := range memoryGroups(root) {
		if n, ok := group.free(root); ok && n < free {
			free, holder = n, "memory cgroup "+group.dir
		}
	}
	return free, holder
}

// TotalMemory returns how many bytes this process and those that it starts can have together: the machine's
// main memory, or less if a memory cgroup limits it. It returns math.MaxInt64 if neither is known.
func TotalMemory() int64 { return totalMemory("/") }

// totalMemory is TotalMemory with the root of availableMemory.
func totalMemory(root string) int64 {
	total := int64(math.MaxInt64)
	if kib, ok := readField(path.Join(root, "proc/meminfo"), "MemTotal:"); ok {
		total = kib << 10
	}
	for _, group := range memoryGroups(root) {
		if limit, ok := readNumber(path.Join(root, group.dir, group.limit)); ok {
			total = min(total, limit)
		}
	}
	return total
}

// memoryGroup is a cgroup directory and the names of its files.
type memoryGroup struct {
	dir                     string // from root
	limit, usage, reclaimed string
}

// memoryGroups are this process's cgroup that accounts memory, and all its
// ancestors, of either version (cgroups(7)).
func memoryGroups(root string) (groups []memoryGroup) {
	text, err := os.ReadFile(path.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, dir, _ := strings.Cut(rest, ":")
		g := memoryGroup{limit: "memory.max", usage: "memory.current", reclaimed: "inactive_file"}
		top := "/sys/fs/cgroup"
		if controllers != "" {
			g = memoryGroup{limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", reclaimed: "total_inactive_file"}
			top = "/sys/fs/cgroup/memory"
			if !slices.Contains(strings.Split(controllers, ","), "memory") {
				continue
			}
		}
		for dir = path.Clean("/" + dir); ; dir = path.Dir(dir) {
			g.dir = path.Join(top, dir)
			groups = append(groups, g)
			if dir == "/" {
				break
			}
		}
	}
	return groups
}

// free is what the group's limit leaves, in bytes. It counts inactive file
// pages as free. It returns false if there is no limit.
func (g memoryGroup) free(root string) (int64, bool) {
	limit, ok := readNumber(path.Join(root, g.dir, g.limit))
	if !ok {
		return 0, false
	}
	usage, ok := readNumber(path.Join(root, g.dir, g.usage))
	if !ok {
		return 0, false
	}
	reclaimed, _ := readField(path.Join(root, g.dir, "memory.stat"), g.reclaimed)
	return max(0, limit-usage+reclaimed), true
}

// readNumber reads a file with one number. For "max" it returns false.
func readNumber(name string) (int64, bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// readField reads the number after word, which begins a line.
func readField(name, word string) (int64, bool) {
	file, err := os.Open(name)
	if err != nil {
		return 0, false
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 && fields[0] == word {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
