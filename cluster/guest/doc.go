// Package guest is a DRA driver for pods that run below the functions on a GPU. It runs on each node that has such GPUs.
//
//  1. nodes.go: finds the pod of functions on each GPU of the node, and the GPU's UUID in its GPUPlan.
//  2. devices.go: says which devices there are, a number per GPU. It is pure.
//  3. driver.go: publishes them. The scheduler gives them to claims of the class guest.penstock.io.
//  4. prepare.go: gives the containers of a claim the GPU, and the library that makes their kernels wait for functions.
//
// # The life of a guest
//
// A device belongs to one pod of functions, and its name is that pod's. If that pod ends, or pods of a second namespace come to
// the GPU, the device gets a taint. Kubernetes then deletes the pods that use it. So no guest runs next to functions for which it
// does not wait.
//
//	one pod of functions ── device ── claim, prepared ── another pod, or none ── taint ── guest deleted ── unprepared, no device
//
// # Trust
//
// Users can write all files in the volume of their functions' pod, and so can choose what the driver finds there. The driver
// follows no link in it and passes on no path of it. A guest gets a hard link to the one file that the driver has checked.
package guest
