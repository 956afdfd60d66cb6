package v1alpha1

// Types of conditions.
const (
	// Planned: a Function has segments for its rate in the plan, and a Fleet has a plan for all its Functions.
	Planned = "Planned"
	// Ready: a Function's segments in the plan serve.
	Ready = "Ready"
	// Valid: a Profile's file can be read and fits its model and GPU.
	Valid = "Valid"
	// InUse: a Function needs a Profile.
	InUse = "InUse"
	// Overlap: nodes of a Fleet also belong to an older Fleet, which has them.
	Overlap = "Overlap"
)

// Reasons of conditions. The message of a condition is a sentence for people: what is wrong, where, and what would be right.
const (
	// ReasonPlanned: nothing is wrong.
	ReasonPlanned = "Planned"
	// ReasonChanging: a change of the plan is under way.
	ReasonChanging = "Changing"
	// ReasonNoFleet: no Fleet serves the Function's namespace.
	ReasonNoFleet = "NoFleet"
	// ReasonNoProfile: there is no valid Profile of the model on a GPU of the fleet.
	ReasonNoProfile = "NoProfile"
	// ReasonInfeasible: the model cannot meet the objective on any GPU of the fleet.
	ReasonInfeasible = "Infeasible"
	// ReasonFleetTooSmall: the fleet has too few GPUs, and Functions of a higher priority come first.
	ReasonFleetTooSmall = "FleetTooSmall"
	// ReasonNamespaceLimit: the Function needs more GPCs than the fleet grants its namespace.
	ReasonNamespaceLimit = "NamespaceLimit"
	// ReasonConflict: an older Function of the namespace has the same port.
	ReasonConflict = "Conflict"
	// ReasonChangeFailed: a step of a change failed, and the change was undone.
	ReasonChangeFailed = "ChangeFailed"

	// ReasonServing: all segments serve.
	ReasonServing = "Serving"
	// ReasonStarting: segments are not ready yet.
	ReasonStarting = "Starting"
	// ReasonNotPlanned: the Function has no segments.
	ReasonNotPlanned = "NotPlanned"

	// ReasonNoNodes: no node has the Fleet's labels.
	ReasonNoNodes = "NoNodes"
	// ReasonNoGPUs: the Fleet's nodes have no GPUs of its driver that a placement table describes.
	ReasonNoGPUs = "NoGPUs"
	// ReasonOverlap: the Fleet shares nodes with an older one.
	ReasonOverlap = "Overlap"
	// ReasonNoOverlap: the Fleet's nodes are its own.
	ReasonNoOverlap = "NoOverlap"

	// ReasonRead: a Profile's file was read.
	ReasonRead = "Read"
	// ReasonUnreadable: a Profile's file is broken, or is of another model or GPU.
	ReasonUnreadable = "Unreadable"
	// ReasonUsed and ReasonUnused say whether a Function needs a Profile.
	ReasonUsed   = "Used"
	ReasonUnused = "Unused"
)
