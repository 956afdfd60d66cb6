// Package migfake makes a go-nvml mock server refuse what a GPU refuses. The mocks
// of go-nvml grant every instance anywhere; a driver does not. Code that is only
// tested with the mocks may therefore have undetected faults.
//
// It refuses the following calls, with the errors that nvml.h documents for each
// function:
//
//   - any instance while MIG mode is off: not supported
//   - a placement that the profile does not have: invalid argument
//   - a placement over a used memory slice, or more compute slices than are free:
//     insufficient resources
//   - destroying a GPU instance with compute instances or processes, or a compute
//     instance with processes, and switching MIG mode while there are instances or
//     processes: in use
//   - a handle of a destroyed instance: invalid argument
//   - every call without root's rights: no permission
//
// It also numbers profiles as a driver does. The Id in a profile's description is
// not the number that requests the profile: a 1g of an A100 is profile 0 with id
// 19.
package migfake
