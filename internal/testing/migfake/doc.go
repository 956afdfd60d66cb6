// Package migfake makes a go-nvml mock server refuse what a GPU refuses. The mocks
// of go-nvml grant every instance anywhere; a driver does not, and code that is
// only tested on the mocks may be wrong without anybody noticing.
//
// What it refuses, and with what, is what nvml.h says of each function:
//
//   - any instance while MIG mode is off: not supported
//   - a placement that the profile does not have: invalid argument
//   - a placement over a memory slice that is taken, or more compute slices than
//     are left: insufficient resources
//   - a GPU instance with compute instances or processes in it destroyed, a compute
//     instance with processes destroyed, MIG mode switched while there are
//     instances or processes: in use
//   - a handle of something destroyed: invalid argument
//   - anything at all for who is not root: no permission
//
// It also numbers profiles as a driver does: the Id in a profile's description is
// not the number that it is asked for by (a 1g of an A100 is profile 0 with id 19).
package migfake
