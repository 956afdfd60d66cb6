//go:build !cgo

package cuda

// The functions of calls_unsafe.go in a build without cgo. load finds no library, and
// all others return noCgo, which becomes ErrNoCgo.

// Results of load.
const (
	loadedLibrary = iota
	noLibrary
	noSymbol
	cannotLoad
)

func load(string) (found int, text string) { return cannotLoad, "" }

func initialise() int32 { return noCgo }

func driverVersion() (uint64, int32) { return 0, noCgo }

func describe(int32) (name, meaning string) { return "", "" }

func deviceCount() (uint64, int32) { return 0, noCgo }

func deviceHandle(int) (int32, int32) { return 0, noCgo }

func deviceUUID(int32) ([16]byte, int32) { return [16]byte{}, noCgo }

func deviceName(int32) (string, int32) { return "", noCgo }

func deviceMemory(int32) (uint64, int32) { return 0, noCgo }

func deviceAttribute(int32, int32) (int64, int32) { return 0, noCgo }

func primaryFlags(int32, uint32) int32 { return noCgo }

func primaryRetain(int32) (uint64, int32) { return 0, noCgo }

func primaryRelease(int32) int32 { return noCgo }

func contextBind(uint64) int32 { return noCgo }

func contextBound() (uint64, int32) { return 0, noCgo }

func contextAffinity() (uint64, int32) { return 0, noCgo }

func memoryInfo() (uint64, uint64, int32) { return 0, 0, noCgo }

func memoryAllocate(uint64) (uint64, int32) { return 0, noCgo }

func memoryFree(uint64) int32 { return noCgo }

func memoryAllocateHost(uint64, uint32) (uint64, int32) { return 0, noCgo }

func memoryFreeHost(uint64) int32 { return noCgo }

func memoryRegister(uint64, uint64, uint32) int32 { return noCgo }

func memoryHostPointer(uint64) (uint64, int32) { return 0, noCgo }

func memoryUnregister(uint64) int32 { return noCgo }

func ipcExport(uint64, *Handle) int32 { return noCgo }

func ipcImport(*Handle) (uint64, int32) { return 0, noCgo }

func ipcClose(uint64) int32 { return noCgo }

func memoryGranularity(int32) (uint64, int32) { return 0, noCgo }

func memoryReserve(uint64) (uint64, int32) { return 0, noCgo }

func memoryUnreserve(uint64, uint64) int32 { return noCgo }

func memoryCreate(int32, uint64) (uint64, int32) { return 0, noCgo }

func memoryRelease(uint64) int32 { return noCgo }

func memoryMap(uint64, uint64, uint64) int32 { return noCgo }

func memoryUnmap(uint64, uint64) int32 { return noCgo }

func memorySetAccess(uint64, uint64, int32, bool) int32 { return noCgo }

func memoryExportFD(uint64) (uint64, int32) { return 0, noCgo }

func memoryImportFD(int) (uint64, int32) { return 0, noCgo }

func streamCreate() (uint64, int32) { return 0, noCgo }

func streamCreatePriority(int) (uint64, int32) { return 0, noCgo }

func streamPriorities() (lowest, highest int, code int32) { return 0, 0, noCgo }

func streamDestroy(uint64) int32 { return noCgo }

func streamSynchronize(uint64) int32 { return noCgo }

func streamQuery(uint64) int32 { return noCgo }

func streamWait(uint64, uint64) int32 { return noCgo }

func streamCopy(uint64, uint64, uint64, uint64) int32 { return noCgo }

func streamSet(uint64, uint64, byte, uint64) int32 { return noCgo }

func streamWrite(uint64, uint64, uint32) int32 { return noCgo }

func streamContext(uint64) (uint64, int32) { return 0, noCgo }

func eventCreate(uint32) (uint64, int32) { return 0, noCgo }

func eventDestroy(uint64) int32 { return noCgo }

func eventRecord(uint64, uint64) int32 { return noCgo }

func eventQuery(uint64) int32 { return noCgo }

func eventSynchronize(uint64) int32 { return noCgo }

func eventElapsed(uint64, uint64) (float32, int32) { return 0, noCgo }

func moduleLoad([]byte) (uint64, string, int32) { return 0, "", noCgo }

func moduleUnload(uint64) int32 { return noCgo }

func moduleFunction(uint64, string) (uint64, int32) { return 0, noCgo }

func functionParameter(uint64, int) (uint64, uint64, int32) { return 0, 0, noCgo }

func launch(uint64, [3]uint32, [3]uint32, uint32, uint64, *Args) int32 { return noCgo }

const captureThreadLocal, captureRelaxed = 1, 2

func captureBegin(uint64, int) int32 { return noCgo }

func captureEnd(uint64) (uint64, int32) { return 0, noCgo }

func graphInstantiate(uint64) (uint64, int32) { return 0, noCgo }

func graphDestroy(uint64) int32 { return noCgo }

func graphLaunch(uint64, uint64) int32 { return noCgo }

func graphUpload(uint64, uint64) int32 { return noCgo }

func graphExecDestroy(uint64) int32 { return noCgo }

func graphClone(uint64) (uint64, int32) { return 0, noCgo }

func graphNodes(uint64, []uint64) (uint64, int32) { return 0, noCgo }

func graphNodeType(uint64) (uint64, int32) { return 0, noCgo }

func kernelNodeGet(uint64) (kernelNode, int32) { return kernelNode{}, noCgo }

func kernelNodeSet(uint64, kernelNode) int32 { return noCgo }

func copyNodeGet(uint64) (copyNode, int32) { return copyNode{}, noCgo }

func copyNodeSource(uint64, uint64) int32 { return noCgo }

func setNodeGet(uint64) (uint64, uint64, int32) { return 0, 0, noCgo }

func symbol(string) uint64 { return 0 }

func resourceSMs(resource) (int, int) { return 0, 0 }

func deviceResource(int32) (resource, int32) { return resource{}, noCgo }

func greenResource(uint64) (resource, int32) { return resource{}, noCgo }

func resourceSplit(resource, int, []resource) (int, resource, int32) {
	return 0, resource{}, noCgo
}

func greenCreate(int32, []resource) (uint64, string, int32) { return 0, "cuGreenCtxCreate", noCgo }

func greenDestroy(uint64) int32 { return noCgo }

func greenContext(uint64) (uint64, int32) { return 0, noCgo }

func greenStream(uint64, int) (uint64, int32) { return 0, noCgo }
