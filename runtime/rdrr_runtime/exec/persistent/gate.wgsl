// The barrier across all workgroups of a dispatch. It needs all of them to be resident on the device at
// the same time, so each wait is bounded.
//
// gate  arrived: workgroups that have arrived, over all waits of the dispatch; left: workgroups that are
//       done; failed: whether one gave up, after which dispatches do nothing until it is cleared;
//       polls: how often a workgroup looks whether the others have arrived before it gives up
struct Gate {
    arrived: atomic<u32>,
    left: atomic<u32>,
    failed: atomic<u32>,
    polls: u32,
}
var<storage, read_write> gate: Gate;

var<workgroup> gave_up: u32;
var<private> most_looks: u32;

// Read from the gate how often to look; called once, because a read at each look would delay it.
fn enter() {
    most_looks = gate.polls;
}

// Say that this thread has looked in vain.
fn admit_failure() {
    if (most_looks == 0u) {
        atomicStore(&gate.failed, 1u);
    }
}

// Whether an earlier dispatch failed; valid in all threads.
fn has_failed(index: u32) -> bool {
    if (index == 0u) {
        gave_up = atomicLoad(&gate.failed);
    }
    return workgroupUniformLoad(&gave_up) != 0u;
}

// Wait until the workgroups have arrived `goal` times in all; false, in all threads, if they have not
// after `gate.polls` looks, or if one has given up before.
//
// The storage barrier completes the writes of a workgroup before it arrives. None is needed behind the wait:
// what other workgroups wrote is in @coherent buffers, whose reads no cache of a multiprocessor serves. A second
// one took 0.4 us of each wait on an H200, since every thread waits for all its accesses to memory there.
fn all_arrived(index: u32, goal: u32) -> bool {
    admit_failure();
    storageBarrier();
    workgroupBarrier();
    if (index == 0u) {
        atomicAdd(&gate.arrived, 1u);
        var looks = 0u;
        var late = 0u;
        loop {
            if (atomicLoad(&gate.arrived) >= goal) {
                late = atomicLoad(&gate.failed);
                break;
            }
            looks++;
            if (looks >= most_looks) {
                atomicStore(&gate.failed, 1u);
                late = 1u;
                break;
            }
        }
        gave_up = late;
    }
    return workgroupUniformLoad(&gave_up) == 0u;
}

// The last of `groups` workgroups to leave prepares the gate for the next dispatch; returns whether this thread
// does that.
fn leave(index: u32, groups: u32) -> bool {
    admit_failure();
    let is_last = index == 0u && atomicAdd(&gate.left, 1u) == groups - 1u;
    if (is_last) {
        atomicStore(&gate.arrived, 0u);
        atomicStore(&gate.left, 0u);
    }
    return is_last;
}
